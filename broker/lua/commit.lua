-- commit: store outputs of a job's requests. The first commit of a request wins; a later one is counted and dropped.
--
-- In one atomic step: the request's bit, its output in the job's stream, the job's counters, and its removal
-- from wherever it waited (pending again after a recovery, or assigned to another batch). The committing session need
-- not be alive: by the bit its late output does no harm, and may even save work.
--
-- Requests that wait for the same text get it in the same step. While the job is open it is kept for those that
-- still come (`answers`, up to a size), and where results are cached, for other jobs. So that a call does not hold up
-- Redis for long, it ends early once it has given out as many as MAX_SHARED; the caller sends the rest again.
--
-- KEYS 1 job  2 requests  3 costs  4 pending  5 assigned  6 committed  7 outputs  8 batch requests  9 session
--      10 closing  11 wake  12 attempts  13 checkpoints  14 waiting  15 load  16 policy
--      17 leaders  18 digests  19 followers  20 answers  21 answered  22 cache  23 cache times  24 sharing
-- ARGV 1 job id  then, for each output: index, payload, failed (0|1), prompt tokens, completion tokens
-- Returns {accepted, dropped, job done (0|1), outputs given to others that waited for the same, outputs of the call that
-- were looked at}; nil when the job is unknown.

local SPEED_MEMORY_MS = 30000
local MAX_ANSWERS_BYTES = 4194304
local MAX_SHARED = 1000 -- of one call, and those of one output more
local MAX_EVICTED = 100 -- of the cache at one output
local ENTRY_BYTES = 128 -- what a field of a hash costs beside its value, about
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local job = redis.call('HMGET', KEYS[1], 'submitted', 'state', 'done', 'model', 'user', 'answers_bytes')
if not job[1] then return nil end
local submitted = tonumber(job[1])
local session_alive = redis.call('EXISTS', KEYS[9]) == 1
local accepted, dropped, failed, prompt_tokens, completion_tokens, freed, settled = 0, 0, 0, 0, 0, 0, 0
local seen, shared, saved_prompt_tokens, saved_completion_tokens = 0, 0, 0, 0
local answers_bytes, followed = tonumber(job[6] or '0'), redis.call('EXISTS', KEYS[19]) == 1
local policy = redis.call('HMGET', KEYS[16], 'result_cache_ttl', 'result_cache_mib')
local cache_ttl_ms, cache_bytes = tonumber(policy[1] or '0') * 1000, tonumber(policy[2] or '0') * 1048576
local model = redis.call('HGET', KEYS[9], 'model') or ''
if model == '' then model = job[4] end

-- Gives a request's output to those that wait for the same, and keeps it for those that come later.
local function share(index, digest, i)
  redis.call('HDEL', KEYS[18], index)
  if redis.call('HGET', KEYS[17], digest) == index then redis.call('HDEL', KEYS[17], digest) end
  local followers = followed and redis.call('ZRANGEBYSCORE', KEYS[19], index, index) or {}
  if #followers > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[19], index, index) end
  for _, follower in ipairs(followers) do
    redis.call('SETBIT', KEYS[6], follower, 1)
    redis.call('XADD', KEYS[7], '*', 'o', ARGV[i + 1], 'i', follower, 's', 'shared')
  end
  shared = shared + #followers
  failed = failed + ARGV[i + 2] * #followers
  saved_prompt_tokens = saved_prompt_tokens + ARGV[i + 3] * #followers
  saved_completion_tokens = saved_completion_tokens + ARGV[i + 4] * #followers
  if ARGV[i + 2] ~= '0' then return end

  local answer = ARGV[i + 3] .. ' ' .. ARGV[i + 4] .. ' ' .. ARGV[i + 1]
  if job[2] == 'open' and redis.call('HSETNX', KEYS[20], digest, answer) == 1 then
    redis.call('RPUSH', KEYS[21], digest)
    answers_bytes = answers_bytes + #answer + ENTRY_BYTES
    while answers_bytes > MAX_ANSWERS_BYTES do
      local oldest = redis.call('LPOP', KEYS[21])
      answers_bytes = answers_bytes - redis.call('HSTRLEN', KEYS[20], oldest) - ENTRY_BYTES
      redis.call('HDEL', KEYS[20], oldest)
    end
    redis.call('HSET', KEYS[1], 'answers_bytes', answers_bytes)
  end
  if cache_ttl_ms > 0 and #answer <= cache_bytes and model ~= '' then
    local name = model .. '\n' .. digest
    if redis.call('EXISTS', KEYS[23]) == 0 then redis.call('HSET', KEYS[24], 'cache_bytes', 0) end
    local more = #answer - redis.call('HSTRLEN', KEYS[22], name)
    redis.call('HSET', KEYS[22], name, answer)
    redis.call('ZADD', KEYS[23], now + cache_ttl_ms, name)
    redis.call('PEXPIRE', KEYS[22], cache_ttl_ms)
    redis.call('PEXPIRE', KEYS[23], cache_ttl_ms)
    local used = redis.call('HINCRBY', KEYS[24], 'cache_bytes', more)
    local first = redis.call('ZRANGE', KEYS[23], 0, 0, 'WITHSCORES')
    local evicted = 0
    while first[1] and evicted < MAX_EVICTED and (used > cache_bytes or tonumber(first[2]) <= now) do
      evicted = evicted + 1
      used = redis.call('HINCRBY', KEYS[24], 'cache_bytes', 0 - redis.call('HSTRLEN', KEYS[22], first[1]))
      redis.call('HDEL', KEYS[22], first[1])
      redis.call('ZREM', KEYS[23], first[1])
      first = redis.call('ZRANGE', KEYS[23], 0, 0, 'WITHSCORES')
    end
  end
end

for i = 2, #ARGV, 5 do
  if shared >= MAX_SHARED then break end
  seen = seen + 1
  local index = ARGV[i]
  local cost = redis.call('HGET', KEYS[8], index)
  if cost then
    redis.call('HDEL', KEYS[8], index)
    freed = freed + 1
    if session_alive then
      redis.call('HINCRBY', KEYS[9], 'inhand_requests', -1)
      redis.call('HINCRBY', KEYS[9], 'inhand_tokens', 0 - cost)
    end
  end
  if tonumber(index) >= submitted or redis.call('SETBIT', KEYS[6], index, 1) == 1 then
    dropped = dropped + 1
  else
    redis.call('XADD', KEYS[7], '*', 'o', ARGV[i + 1])
    settled = settled + string.match(redis.call('HGET', KEYS[3], index) or '0', '^%d+')
    redis.call('HDEL', KEYS[2], index)
    redis.call('HDEL', KEYS[3], index)
    redis.call('HDEL', KEYS[5], index)
    redis.call('HDEL', KEYS[12], index)
    redis.call('HDEL', KEYS[13], index)
    redis.call('ZREM', KEYS[4], index)
    if followed then redis.call('ZREM', KEYS[19], index) end
    accepted = accepted + 1
    failed = failed + ARGV[i + 2]
    prompt_tokens = prompt_tokens + ARGV[i + 3]
    completion_tokens = completion_tokens + ARGV[i + 4]
    local digest = redis.call('HGET', KEYS[18], index)
    if digest then share(index, digest, i) end
  end
end

if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('ZREM', KEYS[14], ARGV[1] .. ' ' .. job[4]) end
local done = redis.call('HINCRBY', KEYS[1], 'done', accepted + shared)
if shared > 0 then
  for _, key in ipairs({ 1, 24 }) do
    redis.call('HINCRBY', KEYS[key], 'shared', shared)
    redis.call('HINCRBY', KEYS[key], 'saved_prompt_tokens', saved_prompt_tokens)
    redis.call('HINCRBY', KEYS[key], 'saved_completion_tokens', saved_completion_tokens)
  end
end
redis.call('HINCRBY', KEYS[1], 'failed', failed)
redis.call('HINCRBY', KEYS[1], 'dropped', dropped)
redis.call('HINCRBY', KEYS[1], 'prompt_tokens', prompt_tokens)
redis.call('HINCRBY', KEYS[1], 'completion_tokens', completion_tokens)

if job[5] and accepted > 0 then
  local user = job[5]
  redis.call('HINCRBY', KEYS[15], 'requests', 0 - accepted - shared)
  redis.call('HINCRBY', KEYS[15], 'tokens', 0 - settled)
  local left = redis.call('HINCRBY', KEYS[15], 'requests ' .. user, 0 - accepted - shared)
  local left_tokens = redis.call('HINCRBY', KEYS[15], 'tokens ' .. user, 0 - settled)
  if left == 0 and left_tokens == 0 then redis.call('HDEL', KEYS[15], 'requests ' .. user, 'tokens ' .. user) end
  -- How fast tokens are settled, remembered for half a minute; by it a client that is refused knows how long to wait.
  local before = redis.call('HMGET', KEYS[15], 'speed_sum', 'speed_ms')
  if before[2] and now - before[2] < 10 * SPEED_MEMORY_MS then
    local sum = before[1] * math.exp((before[2] - now) / SPEED_MEMORY_MS) + settled
    redis.call('HSET', KEYS[15], 'speed_sum', tostring(sum), 'speed_ms', now)
  else
    redis.call('HSET', KEYS[15], 'speed_sum', 0, 'speed_ms', now, 'speed_since_ms', now)
  end
end

local complete = 0
if accepted > 0 and job[2] == 'running' and done == submitted then
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[10], now, ARGV[1])
  complete = 1
end
if freed > 0 then
  redis.call('LPUSH', KEYS[11], 1)
  redis.call('LTRIM', KEYS[11], 0, 0)
end
return { accepted, dropped, complete, shared, seen }
