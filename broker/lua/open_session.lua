-- open_session: begin a session under a worker name.
--
-- A name belongs to one live session. The same instance (one supervisor's life) may replace its own session; another
-- must wait until the old one is dead. A replaced session is marked dead here and recovered by the leader.
--
-- KEYS 1 worker  2 sessions  3 session  4 session that the caller saw under this name (or the same key as 3)
-- ARGV 1 session id  2 worker name  3 instance  4 session id that the caller saw ('' for none)
--      5 lease in ms  6 time to live of the name in s  then: further fields of the session (name, value, ...)
-- Returns the epoch; 0 when the name is taken; -1 when the name changed hands meanwhile (look again).

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local worker = redis.call('HMGET', KEYS[1], 'session', 'instance')
local seen = worker[1] or ''
if seen ~= ARGV[4] then return -1 end

if seen ~= '' and redis.call('EXISTS', KEYS[4]) == 1 then
  local beat = redis.call('ZSCORE', KEYS[2], seen)
  local dead = redis.call('HGET', KEYS[4], 'state') == 'dead'
  if not dead then
    if beat and now - beat < tonumber(ARGV[5]) and worker[2] ~= ARGV[3] then return 0 end
    redis.call('HSET', KEYS[4], 'state', 'dead', 'reason', 'its process was replaced', 'cause', 'crashed', 'dead_ms', now)
  end
end

local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'session', ARGV[1], 'instance', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[6])
redis.call('HSET', KEYS[3], 'id', ARGV[1], 'worker', ARGV[2], 'instance', ARGV[3], 'epoch', epoch, 'opened_ms', now, 'state', 'starting',
  'inhand_requests', 0, 'inhand_tokens', 0, 'isolated', 0, 'drain', 0, 'progress_ms', now)
for i = 7, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', KEYS[2], now, ARGV[1])
return epoch
