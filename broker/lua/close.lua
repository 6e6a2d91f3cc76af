-- close: end a complete job once its Celery result is stored. Its record and outputs live on until they expire.
--
-- Its deltas go at once: all that they say is in the outputs.
--
-- A client that was taken for gone may have come back since the result was made: then the job waits for another one.
--
-- KEYS 1 jobs  2 closing  3 stopping  4 waiting  5 changes of waiting  6 deltas  7.. keys of the job, the job first
-- ARGV 1 job id  2 time to live in seconds  3 whether the result says that the client was lost (0|1)
-- Returns 1 when this call closed the job, 0 when it was closed before; -1 when the client came back: nothing is changed.

if ARGV[3] == '1' and redis.call('HGET', KEYS[7], 'client_lost') == '0' then return -1 end
local first = redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
if redis.call('ZREM', KEYS[4], ARGV[1] .. ' ' .. (redis.call('HGET', KEYS[7], 'model') or '')) == 1 then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', 10000, '*', ARGV[1], 0)
end
redis.call('DEL', KEYS[6])
for i = 7, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
return first
