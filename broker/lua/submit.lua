-- submit: add a run of requests to a job, and create the job with the first run.
--
-- A run names its place (offset), so the same call sent twice changes nothing. A job is complete only once it is
-- sealed: `last` says that no request follows. An empty run keeps an open job alive, or seals it.
--
-- What waits is counted in `load`, for all and for each user, and a run that would go beyond a limit of `policy` is
-- refused as a whole. A job that announces its size is admitted, or refused, for all its runs with the first.
--
-- A request that must have the same text as another of its job waits for that one's output (`followers`), or gets
-- it at once if it is there still (`answers`, kept while the job is open), or gets that of another job (`cache`).
--
-- KEYS 1 job  2 requests  3 costs  4 pending  5 jobs  6 wake  7 closing  8 waiting  9 stopping  10 load  11 policy
--      12 outputs  13 committed  14 leaders  15 digests  16 followers  17 answers  18 answered  19 cache
--      20 cache times  21 sharing  22 changes of waiting
-- ARGV 1 job id  2 model  3 priority  4 offset  5 last (0|1)  6 deadline in ms from now (0 for none; counts at
--      creation only)  7 user  8 announced requests and 9 tokens of the whole job (0 for none; count at creation only)
--      10 weight  11 the channel that is told of urgent requests  12 packed list with the costs of each request
--      (tokens that it may occupy, those of them that are its prompt, and a number for how the prompt begins, parted by
--      spaces)  13 the digest of each, of all that its text follows from, one behind the other, zeros for none; ''
--      where none has one  then, for each request: payload
-- Returns requests submitted so far; -1 when the job is unknown or already sealed with fewer requests; when refused
-- {requests of the run that would fit, limit, its value, counted now, wanted, requests and tokens of whom it is for,
-- tokens of all, estimated tokens settled per second ('0' when unknown)}.

local PAYLOADS = 13 -- arguments before the first
local PIECE = 2000 -- values for one call, as Lua can give a command so many
local MAX_FOLLOWERS = 10000 -- of one request, so that its commit does not hold up Redis for long
local SPEED_MEMORY_MS = 30000 -- as in commit
local PRIORITY_PLACES = 10000000000000 -- more than any time in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local offset, last = tonumber(ARGV[4]), ARGV[5] == '1'
local count = #ARGV - PAYLOADS
local costs = ARGV[12] == '' and {} or cmsgpack.unpack(ARGV[12])
local digest_bytes = #ARGV[13] / math.max(count, 1)
local no_digest = string.rep('\0', digest_bytes)
local function digest_of(i)
  local digest = string.sub(ARGV[13], (i - 1) * digest_bytes + 1, i * digest_bytes)
  return digest ~= no_digest and digest
end

-- Of a place in `waiting`: the lower, the higher is the priority.
local function class_of(place)
  return math.floor(place / PRIORITY_PLACES)
end

local function in_pieces(command, key, values)
  for first = 1, #values, PIECE do
    redis.call(command, key, unpack(values, first, math.min(first + PIECE - 1, #values)))
  end
end

-- ## Whether the job takes this run, and what of it is new.
local job = redis.call('HMGET', KEYS[1], 'state', 'submitted', 'user', 'reserved_requests', 'reserved_tokens', 'model',
  'client_lost')
local is_new = not job[1]
local submitted = tonumber(job[2] or '0')
if not is_new and job[1] ~= 'open' then
  if offset + count > submitted then return -1 end
  if job[7] == '1' and last and offset + count == submitted then -- its client was taken for gone, and is not
    redis.call('HSET', KEYS[1], 'client_lost', 0)
    if job[1] == 'done' then redis.call('ZADD', KEYS[7], now, ARGV[1]) end -- its Celery result says otherwise
  end
  return submitted
end
if offset > submitted then return -1 end

-- What of the new ones was not announced before has to find room.
local user = job[3] or (is_new and ARGV[7])
local announced_requests, announced_tokens = 0, 0
if is_new then announced_requests, announced_tokens = tonumber(ARGV[8]), tonumber(ARGV[9]) end
local reserved_requests = tonumber(job[4] or '0') + announced_requests
local reserved_tokens = tonumber(job[5] or '0') + announced_tokens
local known = math.min(submitted - offset, count)

-- ## Where the output of each comes from: a number is the request that it waits for, a text is the output.
local policy = redis.call('HMGET', KEYS[11], 'share_identical', 'result_cache_ttl')
local shares, caches = policy[1] ~= '0', tonumber(policy[2] or '0') > 0
local model, answered = job[6] or ARGV[2], redis.call('EXISTS', KEYS[17]) == 1
local source, cached, leads = {}, {}, {}
if shares then
  local named = {}
  for i = known + 1, count do named[#named + 1] = digest_of(i) or nil end
  for first = 1, #named, PIECE do
    local found = redis.call('HMGET', KEYS[14], unpack(named, first, math.min(first + PIECE - 1, #named)))
    for i, lead in ipairs(found) do leads[named[first + i - 1]] = tonumber(lead or nil) end
  end
end
local added, added_tokens, waiting, waiting_tokens = count - known, 0, 0, 0
for i = known + 1, count do
  local cost, digest = tonumber(string.match(costs[i], '^%d+')), digest_of(i)
  if digest and shares then
    local lead = leads[digest]
    if lead and redis.call('ZCOUNT', KEYS[16], lead, lead) < MAX_FOLLOWERS then source[i] = lead end
    if answered and not source[i] then source[i] = redis.call('HGET', KEYS[17], digest) or nil end
  end
  if digest and caches and model ~= '' and not source[i] then
    local name = model .. '\n' .. digest
    local ends = redis.call('ZSCORE', KEYS[20], name)
    if ends and tonumber(ends) > now then source[i] = redis.call('HGET', KEYS[19], name) or nil end
    cached[i] = source[i] ~= nil
  end
  if not source[i] then
    leads[digest] = offset + i - 1
    waiting_tokens = waiting_tokens + cost
  end
  if type(source[i]) ~= 'string' then waiting = waiting + 1 end
  added_tokens = added_tokens + cost
end
local more_requests = announced_requests + math.max(0, waiting - reserved_requests)
local more_tokens = announced_tokens + math.max(0, waiting_tokens - reserved_tokens)

-- ## Whether there is room. Up to here and, but for `touched_ms`, until a refusal nothing is changed.
if user and more_requests + more_tokens > 0 then
  local names = { 'max_pending_requests', 'max_pending_tokens', 'max_user_pending_requests', 'max_user_pending_tokens' }
  local limits = redis.call('HMGET', KEYS[11], unpack(names))
  local load = redis.call('HMGET', KEYS[10], 'requests', 'tokens', 'requests ' .. user, 'tokens ' .. user,
    'speed_sum', 'speed_ms', 'speed_since_ms')
  local wanted = { more_requests, more_tokens, more_requests, more_tokens }
  local room = { math.huge, math.huge }
  local full, hopeless
  for i = 1, 4 do
    local most, fill = tonumber(limits[i] or '0'), tonumber(load[i] or '0')
    if most > 0 then
      local kind = (i - 1) % 2 + 1
      -- A limit that was lowered below what waits refuses nothing that adds nothing to it.
      room[kind] = math.min(room[kind], math.max(0, most - fill))
      if wanted[i] > 0 and fill + wanted[i] > most then full = full or i end
      if wanted[i] > most then hopeless = hopeless or i end
    end
  end
  local i = hopeless or full
  if i then
    if not is_new then redis.call('HSET', KEYS[1], 'touched_ms', now) end -- its client waits, and is not gone
    local fits, requests, tokens = known, 0, 0
    while fits < count do
      local from = source[fits + 1]
      if type(from) ~= 'string' then requests = requests + 1 end
      if not from then tokens = tokens + string.match(costs[fits + 1], '^%d+') end
      if requests - reserved_requests > room[1] or tokens - reserved_tokens > room[2] then break end
      fits = fits + 1
    end
    local speed = 0
    if load[7] and now > tonumber(load[7]) and now - load[6] < 10 * SPEED_MEMORY_MS then
      local seen = 1 - math.exp((load[7] - now) / SPEED_MEMORY_MS)
      speed = load[5] * math.exp((load[6] - now) / SPEED_MEMORY_MS) / seen * 1000 / SPEED_MEMORY_MS
    end
    local of = i > 2 and 3 or 1
    return { fits, names[i], tonumber(limits[i]), tonumber(load[i] or '0'), wanted[i], tonumber(load[of] or '0'),
      tonumber(load[of + 1] or '0'), tonumber(load[2] or '0'), tostring(speed) }
  end
end

-- ## The job, if this is its first run.
if is_new then
  local deadline = 0
  if tonumber(ARGV[6]) > 0 then deadline = now + ARGV[6] end
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'model', ARGV[2], 'priority', ARGV[3], 'state', 'open',
    'submitted', 0, 'done', 0, 'failed', 0, 'dropped', 0, 'prompt_tokens', 0, 'completion_tokens', 0,
    'created_ms', now, 'touched_ms', now, 'finished_ms', 0, 'cancelled', 0, 'user', user, 'weight', ARGV[10],
    'deadline_ms', string.format('%.0f', deadline),
    'place', string.format('%.0f', now - ARGV[3] * PRIORITY_PLACES))
  redis.call('ZADD', KEYS[5], now, ARGV[1])
  if deadline > 0 then redis.call('ZADD', KEYS[9], string.format('%.0f', deadline), ARGV[1]) end
end

-- ## The requests: each is pending, follows another, or has its output at once.
local done, from_cache, prompt_tokens, completion_tokens = 0, 0, 0, 0
local new_payloads, new_costs, new_pending, new_leaders, new_digests = {}, {}, {}, {}, {}
local function add(values, name, value)
  local n = #values
  values[n + 1], values[n + 2] = name, value
end
for i = known + 1, count do
  local index, digest = offset + i - 1, digest_of(i)
  if not source[i] then
    add(new_payloads, index, ARGV[PAYLOADS + i])
    add(new_costs, index, costs[i])
    add(new_pending, index, index)
    if digest and (shares or caches) then
      add(new_leaders, digest, index)
      add(new_digests, index, digest)
    end
  elseif type(source[i]) == 'number' then
    redis.call('ZADD', KEYS[16], source[i], index)
  else -- '<prompt tokens> <completion tokens> <payload>'
    local first = string.find(source[i], ' ', 1, true)
    local second = string.find(source[i], ' ', first + 1, true)
    prompt_tokens = prompt_tokens + string.sub(source[i], 1, first - 1)
    completion_tokens = completion_tokens + string.sub(source[i], first + 1, second - 1)
    redis.call('SETBIT', KEYS[13], index, 1)
    redis.call('XADD', KEYS[12], '*', 'o', string.sub(source[i], second + 1), 'i', index,
      's', cached[i] and 'cache' or 'shared')
    done = done + 1
    if cached[i] then from_cache = from_cache + 1 end
  end
end
in_pieces('HSET', KEYS[2], new_payloads)
in_pieces('HSET', KEYS[3], new_costs)
in_pieces('ZADD', KEYS[4], new_pending)
in_pieces('HSET', KEYS[14], new_leaders)
in_pieces('HSET', KEYS[15], new_digests)
if done > 0 then
  for _, key in ipairs({ 1, 21 }) do
    redis.call('HINCRBY', KEYS[key], 'shared', done - from_cache)
    redis.call('HINCRBY', KEYS[key], 'cached', from_cache)
    redis.call('HINCRBY', KEYS[key], 'saved_prompt_tokens', prompt_tokens)
    redis.call('HINCRBY', KEYS[key], 'saved_completion_tokens', completion_tokens)
  end
  redis.call('HINCRBY', KEYS[1], 'done', done)
end
-- ## The job's counters, and its place among those that wait.
submitted = submitted + added
redis.call('HSET', KEYS[1], 'submitted', submitted, 'touched_ms', now)
if redis.call('EXISTS', KEYS[4]) == 1 then
  local place = redis.call('HMGET', KEYS[1], 'place', 'model')
  if redis.call('ZADD', KEYS[8], place[1], ARGV[1] .. ' ' .. place[2]) == 1 then
    redis.call('XADD', KEYS[22], 'MAXLEN', '~', 10000, '*', ARGV[1], 1)
  end
  -- Whoever is of the highest class that waits, while others of a lower one do, is not kept waiting by a driver's rest.
  local first = redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2]
  local last = redis.call('ZRANGE', KEYS[8], -1, -1, 'WITHSCORES')[2]
  if #new_pending > 0 and class_of(place[1]) == class_of(first) and class_of(first) < class_of(last) then
    redis.pcall('PUBLISH', ARGV[11], 1) -- who may not, waits for the rest
  end
end

-- ## The load: what has come uses up what was announced.
if user then
  local requests, tokens = announced_requests + waiting, announced_tokens + waiting_tokens
  local used_requests, used_tokens = math.min(reserved_requests, added), math.min(reserved_tokens, added_tokens)
  reserved_requests, reserved_tokens = reserved_requests - used_requests, reserved_tokens - used_tokens
  requests, tokens = requests - used_requests, tokens - used_tokens
  if last then -- what was announced and did not come
    requests, tokens = requests - reserved_requests, tokens - reserved_tokens
    reserved_requests, reserved_tokens = 0, 0
  end
  redis.call('HSET', KEYS[1], 'reserved_requests', reserved_requests, 'reserved_tokens', reserved_tokens)
  redis.call('HINCRBY', KEYS[10], 'requests', requests)
  redis.call('HINCRBY', KEYS[10], 'tokens', tokens)
  local left = redis.call('HINCRBY', KEYS[10], 'requests ' .. user, requests)
  local left_tokens = redis.call('HINCRBY', KEYS[10], 'tokens ' .. user, tokens)
  if left == 0 and left_tokens == 0 then redis.call('HDEL', KEYS[10], 'requests ' .. user, 'tokens ' .. user) end
end

-- ## The seal.
if last then
  redis.call('HSET', KEYS[1], 'state', 'running')
  redis.call('UNLINK', KEYS[17], KEYS[18])
  -- The last output may have come before the seal.
  if tonumber(redis.call('HGET', KEYS[1], 'done')) == submitted then
    redis.call('HSET', KEYS[1], 'state', 'done', 'finished_ms', now)
    redis.call('ZADD', KEYS[7], now, ARGV[1])
  end
end

redis.call('LPUSH', KEYS[6], 1)
redis.call('LTRIM', KEYS[6], 0, 0)
return submitted
