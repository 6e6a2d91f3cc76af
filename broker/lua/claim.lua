-- claim: a worker takes up a batch that a message named.
--
-- Gives the requests that are still this batch's and have no output yet: a batch claimed again generates only what is
-- missing, and goes on behind the tokens that an interrupted run has saved. A message for a batch that is gone, was
-- given to another session, or is of another job than the message says, gets nothing and is harmless.
--
-- KEYS 1 batch  2 batch requests  3 session  4 job  5 requests  6 assigned  7 committed  8 attempts  9 checkpoints
-- ARGV 1 batch id  2 session id  3 job id
-- Returns nil when refused, else {cancelled (0|1), deadline in ms from now ('' for none), and for each request:
-- index, payload, attempts before, saved tokens ('' for none)}.

local batch = redis.call('HMGET', KEYS[1], 'session', 'job')
if batch[1] ~= ARGV[2] or batch[2] ~= ARGV[3] then return nil end
local state = redis.call('HGET', KEYS[3], 'state')
if not state or state == 'dead' then return nil end

redis.call('HSET', KEYS[1], 'state', 'claimed')
local job = redis.call('HMGET', KEYS[4], 'cancelled', 'deadline_ms')
local left = ''
if job[2] and job[2] ~= '0' then
  local time = redis.call('TIME')
  left = tostring(tonumber(job[2]) - time[1] * 1000 - math.floor(time[2] / 1000))
end

local taken = { tonumber(job[1] or '0'), left }
local held = redis.call('HGETALL', KEYS[2])
for i = 1, #held, 2 do
  local index = held[i]
  local payload = redis.call('HGET', KEYS[5], index)
  local mine = redis.call('HGET', KEYS[6], index) == ARGV[1]
  if payload and mine and redis.call('GETBIT', KEYS[7], index) == 0 then
    taken[#taken + 1] = index
    taken[#taken + 1] = payload
    taken[#taken + 1] = redis.call('HGET', KEYS[8], index) or '0'
    taken[#taken + 1] = redis.call('HGET', KEYS[9], index) or ''
  else
    redis.call('HDEL', KEYS[2], index)
    redis.call('HINCRBY', KEYS[3], 'inhand_requests', -1)
    redis.call('HINCRBY', KEYS[3], 'inhand_tokens', 0 - held[i + 1])
  end
end
return taken
