-- forget: remove a session that holds no batch any more.
--
-- KEYS 1 session  2 session batches  3 sessions  then: keys that Celery wrote for this session
-- ARGV 1 session id
-- Returns 1 when removed, 0 when it still holds batches or is not dead.

local state = redis.call('HGET', KEYS[1], 'state')
if state and state ~= 'dead' then return 0 end
if redis.call('SCARD', KEYS[2]) > 0 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('DEL', unpack(KEYS, 1, 2))
for i = 4, #KEYS do redis.call('DEL', KEYS[i]) end
return 1
