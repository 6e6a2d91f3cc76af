-- want: publish how many workers the leader wants, as a number and as the length of a list (which KEDA can read).
--
-- KEYS 1 leader  2 scale  3 wanted
-- ARGV 1 leader token  2 wanted (-1: nobody decides any more, unless people have just said so)
--      then: fields of the record (name, value, ...)
-- Returns 1 when published, 0 when people decide meanwhile; -1 not the leader.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local wanted = tonumber(ARGV[2])
if wanted < 0 then
  if redis.call('HEXISTS', KEYS[2], 'mode') == 1 then return 0 end
  redis.call('DEL', KEYS[2], KEYS[3])
  return 1
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('HGET', KEYS[2], 'wanted') ~= ARGV[2] then redis.call('HSET', KEYS[2], 'decided_ms', now) end
redis.call('HSET', KEYS[2], 'wanted', wanted)
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end

for _ = redis.call('LLEN', KEYS[3]) + 1, wanted do redis.call('RPUSH', KEYS[3], 1) end
if wanted == 0 then redis.call('DEL', KEYS[3]) else redis.call('LTRIM', KEYS[3], 0, wanted - 1) end
return 1
