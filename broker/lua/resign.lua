-- resign: give up the lead, if the caller has it.
--
-- KEYS 1 leader
-- ARGV 1 token of the caller
-- Returns 1 when given up, 0 when another leads.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
