-- configure: make the leader's limits those of everybody.
--
-- KEYS 1 leader  2 policy
-- ARGV 1 leader token  then: fields of the policy (name, value, ...)
-- Returns 1; -1 when the caller does not lead.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[2])
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
