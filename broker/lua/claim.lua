-- claim: a worker takes up a batch that a message named.
--
-- Gives the requests that are still this batch's and have no output yet: a batch claimed again generates only what is
-- missing, and goes on behind the tokens that an interrupted run has saved. A message for a batch that is gone, was
-- given to another session, or is of another job than the message says, gets nothing and is harmless.
--
-- KEYS 1 batch  2 batch requests  3 session  4 job  5 requests  6 assigned  7 committed  8 attempts  9 checkpoints
-- ARGV 1 batch id  2 session id  3 job id
-- Returns nil when refused, else {cancelled (0|1), deadline in ms from now ('' for none), the job's priority, packed lists of
-- the requests' indices, attempts before, and payload sizes, the payloads one behind the other, and a list of index and
-- saved tokens of each request that has any}.

local PIECE = 1000 -- requests for one call: three times as many values can Lua give a command

local batch = redis.call('HMGET', KEYS[1], 'session', 'job')
if batch[1] ~= ARGV[2] or batch[2] ~= ARGV[3] then return nil end
local state = redis.call('HGET', KEYS[3], 'state')
if not state or state == 'dead' then return nil end

redis.call('HSET', KEYS[1], 'state', 'claimed')
local job = redis.call('HMGET', KEYS[4], 'cancelled', 'deadline_ms', 'priority')
local left = ''
if job[2] and job[2] ~= '0' then
  local time = redis.call('TIME')
  left = tostring(tonumber(job[2]) - time[1] * 1000 - math.floor(time[2] / 1000))
end

local held = redis.call('HGETALL', KEYS[2])
local tried, saved = redis.call('EXISTS', KEYS[8]) == 1, redis.call('EXISTS', KEYS[9]) == 1
local mine, attempts, sizes, payloads, rest, gone, gone_tokens = {}, {}, {}, {}, {}, {}, 0
for first = 1, #held, 2 * PIECE do
  local indices, bits = {}, {}
  for i = first, math.min(first + 2 * PIECE - 1, #held), 2 do
    local n, b = #indices + 1, #bits
    indices[n] = held[i]
    bits[b + 1], bits[b + 2], bits[b + 3] = 'GET', 'u1', held[i]
  end
  local found, owners = redis.call('HMGET', KEYS[5], unpack(indices)), redis.call('HMGET', KEYS[6], unpack(indices))
  local done = redis.call('BITFIELD_RO', KEYS[7], unpack(bits))
  local tries = tried and redis.call('HMGET', KEYS[8], unpack(indices)) or {}
  local tokens = saved and redis.call('HMGET', KEYS[9], unpack(indices)) or {}
  for i, index in ipairs(indices) do
    if found[i] and owners[i] == ARGV[1] and done[i] == 0 then
      local n = #mine + 1
      mine[n], attempts[n], sizes[n], payloads[n] = tonumber(index), tonumber(tries[i] or '0'), #found[i], found[i]
      if tokens[i] then rest[#rest + 1], rest[#rest + 2] = index, tokens[i] end
    else
      gone[#gone + 1] = index
      gone_tokens = gone_tokens + held[first + 2 * i - 1]
    end
  end
end
if #gone > 0 then
  for first = 1, #gone, PIECE do redis.call('HDEL', KEYS[2], unpack(gone, first, math.min(first + PIECE - 1, #gone))) end
  redis.call('HINCRBY', KEYS[3], 'inhand_requests', 0 - #gone)
  redis.call('HINCRBY', KEYS[3], 'inhand_tokens', 0 - gone_tokens)
end
return { tonumber(job[1] or '0'), left, tonumber(job[3] or '0'), cmsgpack.pack(mine), cmsgpack.pack(attempts),
  cmsgpack.pack(sizes), table.concat(payloads), rest }
