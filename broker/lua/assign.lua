-- assign: make a batch of pending requests and give it to one session.
--
-- Only the leader may (token compare), and only to a session that is ready. Requests that are no longer pending
-- are left out, so a decision made on a stale snapshot does no harm. The message that wakes the worker goes into its
-- queue in the same step: there is no batch that nobody was told of.
--
-- KEYS 1 leader  2 session  3 session batches  4 batch  5 batch requests  6 job  7 pending  8 assigned  9 costs
--      10 waiting  11 the worker's Celery queue  12 changes of waiting
-- ARGV 1 leader token  2 session id  3 batch id  4 job id  5 isolated (0|1: suspects, alone on their worker)
--      6 packed list of the requests' indices  7 packed list of the tokens that each is expected to occupy ('' for
--      all that they may)  8 message ('' for none)
-- Returns requests assigned (0: none was left, no batch made); -1 not the leader; -2 the session takes no work.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local session = redis.call('HMGET', KEYS[2], 'state', 'epoch')
if session[1] ~= 'ready' then return -2 end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local PIECE = 2000 -- values for one call, as Lua can give a command so many
local indices = cmsgpack.unpack(ARGV[6])
local expected = ARGV[7] ~= '' and cmsgpack.unpack(ARGV[7])
local count, tokens, seen = 0, 0, {}
for first = 1, #indices, PIECE do
  local last = math.min(first + PIECE - 1, #indices)
  local taken, costs = {}, {}
  for i, score in ipairs(redis.call('ZMSCORE', KEYS[7], unpack(indices, first, last))) do
    local index = indices[first + i - 1]
    if score and not seen[index] then
      seen[index] = true
      taken[#taken + 1] = index
      costs[#taken] = expected and expected[first + i - 1]
    end
  end
  if #taken > 0 then
    redis.call('ZREM', KEYS[7], unpack(taken))
    if not expected then costs = redis.call('HMGET', KEYS[9], unpack(taken)) end
    local owners, sizes = {}, {}
    for i, index in ipairs(taken) do
      local cost = tonumber(expected and costs[i] or string.match(costs[i] or '0', '^%d+'))
      owners[2 * i - 1], owners[2 * i] = index, ARGV[3]
      sizes[2 * i - 1], sizes[2 * i] = index, cost
      tokens = tokens + cost
    end
    redis.call('HSET', KEYS[8], unpack(owners))
    redis.call('HSET', KEYS[5], unpack(sizes))
    count = count + #taken
  end
end
if redis.call('EXISTS', KEYS[7]) == 0 then
  if redis.call('ZREM', KEYS[10], ARGV[4] .. ' ' .. (redis.call('HGET', KEYS[6], 'model') or '')) == 1 then
    redis.call('XADD', KEYS[12], 'MAXLEN', '~', 10000, '*', ARGV[4], 0)
  end
end
if count == 0 then return 0 end

redis.call('HSET', KEYS[4], 'id', ARGV[3], 'job', ARGV[4], 'session', ARGV[2], 'epoch', session[2],
  'state', 'assigned', 'assigned_ms', now, 'size', count, 'tokens', tokens, 'isolated', ARGV[5])
redis.call('SADD', KEYS[3], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'isolated', ARGV[5])
redis.call('HINCRBY', KEYS[2], 'inhand_requests', count)
redis.call('HINCRBY', KEYS[2], 'inhand_tokens', tokens)
if ARGV[8] ~= '' then redis.call('LPUSH', KEYS[11], ARGV[8]) end
return count
