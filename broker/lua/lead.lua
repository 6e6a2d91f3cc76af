-- lead: take or renew the lead. Every new leader gets a higher term.
--
-- KEYS 1 leader  2 term
-- ARGV 1 token of the caller  2 lease in ms
-- Returns the term while the caller leads, 0 while another does.

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(redis.call('GET', KEYS[2]))
end
if holder then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', KEYS[2])
