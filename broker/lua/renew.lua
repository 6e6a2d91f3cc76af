-- renew: note that the client of an open job is there, which may add to it at any time.
--
-- KEYS 1 job
-- ARGV none
-- Returns 1 while the job is open; 0 when it takes no more requests, or is unknown.

if redis.call('HGET', KEYS[1], 'state') ~= 'open' then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'touched_ms', time[1] * 1000 + math.floor(time[2] / 1000))
return 1
