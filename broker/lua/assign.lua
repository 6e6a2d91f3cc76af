-- assign: make a batch of pending requests and give it to one session.
--
-- Only the leader may (token compare), and only to a session that is ready. Requests that are no longer pending
-- are left out, so a decision made on a stale snapshot does no harm.
--
-- KEYS 1 leader  2 session  3 session batches  4 batch  5 batch requests  6 job  7 pending  8 assigned  9 costs
--      10 waiting
-- ARGV 1 leader token  2 session id  3 batch id  4 job id  5 isolated (0|1: suspects, alone on their worker)
--      then, for each request: index, tokens that it is expected to occupy ('' for all that it may)
-- Returns requests assigned (0: none was left, no batch made); -1 not the leader; -2 the session takes no work.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local session = redis.call('HMGET', KEYS[2], 'state', 'epoch')
if session[1] ~= 'ready' then return -2 end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, tokens = 0, 0
for i = 6, #ARGV, 2 do
  local index = ARGV[i]
  if redis.call('ZREM', KEYS[7], index) == 1 then
    local cost = ARGV[i + 1]
    if cost == '' then cost = string.match(redis.call('HGET', KEYS[9], index) or '0', '^%d+') end
    redis.call('HSET', KEYS[8], index, ARGV[3])
    redis.call('HSET', KEYS[5], index, cost)
    count = count + 1
    tokens = tokens + cost
  end
end
if redis.call('EXISTS', KEYS[7]) == 0 then
  redis.call('ZREM', KEYS[10], ARGV[4] .. ' ' .. (redis.call('HGET', KEYS[6], 'model') or ''))
end
if count == 0 then return 0 end

redis.call('HSET', KEYS[4], 'id', ARGV[3], 'job', ARGV[4], 'session', ARGV[2], 'epoch', session[2],
  'state', 'assigned', 'assigned_ms', now, 'size', count, 'tokens', tokens, 'isolated', ARGV[5])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'isolated', ARGV[5])
redis.call('HINCRBY', KEYS[2], 'inhand_requests', count)
redis.call('HINCRBY', KEYS[2], 'inhand_tokens', tokens)
return count
