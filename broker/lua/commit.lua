-- commit: store outputs of a job's requests. The first commit of a request wins; a later one is counted and dropped.
--
-- In one atomic step: the request's bit, its output in the job's stream, the job's counters, and its removal
-- from wherever it waited (pending again after a recovery, or assigned to another batch). The committing session need
-- not be alive: by the bit its late output does no harm, and may even save work.
--
-- Requests that wait for the same text get it in the same step. While the job is open it is kept for those that
-- still come (`answers`, up to a size), and where results are cached, for other jobs. So that a call does not hold up
-- Redis for long, it ends early once it has given out as many as MAX_SHARED, or has looked at MAX_OUTPUTS; the caller
-- sends the rest again.
--
-- Each structure is changed by one call for all outputs together: a call costs as much as what it does for several.
--
-- KEYS 1 job  2 requests  3 costs  4 pending  5 assigned  6 committed  7 outputs  8 batch requests  9 session
--      10 closing  11 wake  12 attempts  13 checkpoints  14 waiting  15 load  16 policy
--      17 leaders  18 digests  19 followers  20 answers  21 answered  22 cache  23 cache times  24 sharing
--      25 changes of waiting  26 losses
-- ARGV 1 job id  2 packed facts: for each output its index, whether it failed (0|1), prompt tokens, completion tokens
--      then, for each output: payload
-- Returns {accepted, dropped, job done (0|1), outputs given to others that waited for the same, outputs of the call that
-- were looked at}; nil when the job is unknown.

local PAYLOADS = 2 -- arguments before the first
local SPEED_MEMORY_MS = 30000
local MAX_OUTPUTS = 1000 -- of one call; also as many arguments, times four, as Lua can give a command
local MAX_ANSWERS_BYTES = 4194304
local MAX_SHARED = 1000 -- of one call, and those of one output more
local MAX_EVICTED = 100 -- of the cache at one output
local ENTRY_BYTES = 128 -- what a field of a hash costs beside its value, about
local PAGE_OUTPUTS, PAGE_BYTES = 32, 32768 -- of one entry of the stream
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local job = redis.call('HMGET', KEYS[1], 'submitted', 'state', 'done', 'model', 'user', 'answers_bytes', 'failed',
  'dropped', 'prompt_tokens', 'completion_tokens')
if not job[1] then return nil end
local submitted = tonumber(job[1])
local facts = cmsgpack.unpack(ARGV[2])
local dropped, failed, prompt_tokens, completion_tokens, settled = 0, 0, 0, 0, 0
local shared, saved_prompt_tokens, saved_completion_tokens = 0, 0, 0
local answers_bytes, followed = tonumber(job[6] or '0'), redis.call('EXISTS', KEYS[19]) == 1

-- ## The outputs that this call looks at: the first of each request.
local indices, place = {}, {}
local seen, given = 0, 0
for at = 1, math.min(#facts / 4, MAX_OUTPUTS) do
  if given >= MAX_SHARED then break end
  seen = at
  local index = facts[4 * at - 3]
  if place[index] then
    dropped = dropped + 1
  else
    indices[#indices + 1], place[index] = index, at
    if followed then given = given + redis.call('ZCOUNT', KEYS[19], index, index) end
  end
end
if seen == 0 then return { 0, 0, 0, 0, 0 } end

-- ## Whatever becomes of them, the batch holds them no more.
local held, freed, freed_tokens = redis.call('HMGET', KEYS[8], unpack(indices)), {}, 0
for i, cost in ipairs(held) do
  if cost then
    freed[#freed + 1] = indices[i]
    freed_tokens = freed_tokens + cost
  end
end
if #freed > 0 then
  redis.call('HDEL', KEYS[8], unpack(freed))
  if redis.call('EXISTS', KEYS[9]) == 1 then
    redis.call('HINCRBY', KEYS[9], 'inhand_requests', 0 - #freed)
    redis.call('HINCRBY', KEYS[9], 'inhand_tokens', 0 - freed_tokens)
  end
end

-- ## Those that are the first of their request: by its bit.
local asked, bits, accepted = {}, {}, {}
for _, index in ipairs(indices) do
  if index < submitted then
    local n = #bits
    bits[n + 1], bits[n + 2], bits[n + 3], bits[n + 4] = 'SET', 'u1', index, 1
    asked[#asked + 1] = index
  end
end
if #asked > 0 then
  for i, bit in ipairs(redis.call('BITFIELD', KEYS[6], unpack(bits))) do
    if bit == 0 then accepted[#accepted + 1] = asked[i] end
  end
end
dropped = dropped + #indices - #accepted

-- ## What is done with an output that is accepted, as functions.
-- Adds outputs to the stream, several in one entry as a msgpack array.
local page, page_bytes = {}, 0
local function flush()
  local n = #page
  if n == 1 then
    redis.call('XADD', KEYS[7], '*', 'o', page[1])
  elseif n > 1 then
    local head = n < 16 and string.char(144 + n) or string.char(220, math.floor(n / 256), n % 256)
    redis.call('XADD', KEYS[7], '*', 'p', head .. table.concat(page))
  end
  page, page_bytes = {}, 0
end

-- Gives a request's output to those that wait for the same, and keeps it for those that come later.
local function share(index, digest, payload, at)
  local name = string.format('%d', index)
  if redis.call('HGET', KEYS[17], digest) == name then redis.call('HDEL', KEYS[17], digest) end
  local followers = followed and redis.call('ZRANGEBYSCORE', KEYS[19], index, index) or {}
  if #followers > 0 then
    flush() -- the first comes before those that follow it
    redis.call('ZREMRANGEBYSCORE', KEYS[19], index, index)
  end
  for _, follower in ipairs(followers) do
    redis.call('SETBIT', KEYS[6], follower, 1)
    redis.call('XADD', KEYS[7], '*', 'o', payload, 'i', follower, 's', 'shared')
  end
  local has_failed, read, written = facts[4 * at - 2], facts[4 * at - 1], facts[4 * at]
  shared = shared + #followers
  failed = failed + has_failed * #followers
  saved_prompt_tokens = saved_prompt_tokens + read * #followers
  saved_completion_tokens = saved_completion_tokens + written * #followers
  return has_failed == 0 and read .. ' ' .. written .. ' ' .. payload
end

-- Keeps it for requests of the job that still come; the oldest goes when all are too large.
local function keep_for_job(digest, answer)
  if redis.call('HSETNX', KEYS[20], digest, answer) == 0 then return end
  redis.call('RPUSH', KEYS[21], digest)
  answers_bytes = answers_bytes + #answer + ENTRY_BYTES
  while answers_bytes > MAX_ANSWERS_BYTES do
    local oldest = redis.call('LPOP', KEYS[21])
    answers_bytes = answers_bytes - redis.call('HSTRLEN', KEYS[20], oldest) - ENTRY_BYTES
    redis.call('HDEL', KEYS[20], oldest)
  end
  redis.call('HSET', KEYS[1], 'answers_bytes', answers_bytes)
end

local policy = redis.call('HMGET', KEYS[16], 'result_cache_ttl', 'result_cache_mib')
local cache_ttl_ms, cache_bytes = tonumber(policy[1] or '0') * 1000, tonumber(policy[2] or '0') * 1048576
local model = ''
if cache_ttl_ms > 0 then
  model = redis.call('HGET', KEYS[9], 'model') or ''
  if model == '' then model = job[4] end
end

-- Keeps it for requests of other jobs; what has expired goes, and the oldest when all are too large.
local function keep_for_all(digest, answer)
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

-- ## The accepted ones: out of wherever they waited, into the stream, and to those that wait for the same.
if #accepted > 0 then
  for _, cost in ipairs(redis.call('HMGET', KEYS[3], unpack(accepted))) do
    settled = settled + string.match(cost or '0', '^%d+')
  end
  for _, key in ipairs({ 2, 3, 5 }) do redis.call('HDEL', KEYS[key], unpack(accepted)) end
  for _, key in ipairs({ 12, 13, 26 }) do -- few jobs have any
    if redis.call('EXISTS', KEYS[key]) == 1 then redis.call('HDEL', KEYS[key], unpack(accepted)) end
  end
  redis.call('ZREM', KEYS[4], unpack(accepted))
  if followed then redis.call('ZREM', KEYS[19], unpack(accepted)) end

  local digests = {}
  if redis.call('EXISTS', KEYS[18]) == 1 then
    digests = redis.call('HMGET', KEYS[18], unpack(accepted))
    redis.call('HDEL', KEYS[18], unpack(accepted))
  end
  for i, index in ipairs(accepted) do
    local at = place[index]
    local payload = ARGV[PAYLOADS + at]
    if #page > 0 and (#page >= PAGE_OUTPUTS or page_bytes + #payload > PAGE_BYTES) then flush() end
    page[#page + 1], page_bytes = payload, page_bytes + #payload
    failed = failed + facts[4 * at - 2]
    prompt_tokens = prompt_tokens + facts[4 * at - 1]
    completion_tokens = completion_tokens + facts[4 * at]
    if digests[i] then
      local answer = share(index, digests[i], payload, at)
      if answer and job[2] == 'open' then keep_for_job(digests[i], answer) end
      if answer and cache_ttl_ms > 0 and #answer <= cache_bytes and model ~= '' then keep_for_all(digests[i], answer) end
    end
  end
  flush()
end

-- ## The job's place among those that wait, and its counters.
if redis.call('EXISTS', KEYS[4]) == 0 and redis.call('ZREM', KEYS[14], ARGV[1] .. ' ' .. job[4]) == 1 then
  redis.call('XADD', KEYS[25], 'MAXLEN', '~', 10000, '*', ARGV[1], 0)
end
if shared > 0 then
  for _, key in ipairs({ 1, 24 }) do
    redis.call('HINCRBY', KEYS[key], 'shared', shared)
    redis.call('HINCRBY', KEYS[key], 'saved_prompt_tokens', saved_prompt_tokens)
    redis.call('HINCRBY', KEYS[key], 'saved_completion_tokens', saved_completion_tokens)
  end
end
local done = job[3] + #accepted + shared
redis.call('HSET', KEYS[1], 'done', done, 'failed', job[7] + failed, 'dropped', job[8] + dropped,
  'prompt_tokens', job[9] + prompt_tokens, 'completion_tokens', job[10] + completion_tokens)

-- ## The load.
if job[5] and #accepted > 0 then
  local user = job[5]
  redis.call('HINCRBY', KEYS[15], 'requests', 0 - #accepted - shared)
  redis.call('HINCRBY', KEYS[15], 'tokens', 0 - settled)
  local left = redis.call('HINCRBY', KEYS[15], 'requests ' .. user, 0 - #accepted - shared)
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

-- ## The job's end, and room in the worker.
local complete = 0
if #accepted > 0 and job[2] == 'running' and done == submitted then
  redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
  redis.call('ZADD', KEYS[10], now, ARGV[1])
  complete = 1
end
if #freed > 0 and redis.call('EXISTS', KEYS[14]) == 1 then -- there is room, and work for it
  redis.call('LPUSH', KEYS[11], 1)
  redis.call('LTRIM', KEYS[11], 0, 0)
end
return { #accepted, dropped, complete, shared, seen }
