-- scale: set, or take back, people's bounds on the number of workers; the leader decides within them.
--
-- What the leader has decided stays until it decides anew: whoever reads the wanted number must not see none. The
-- bounds that it was decided within go: they say who decides.
--
-- KEYS 1 scale  2 wake
-- ARGV 1 mode (manual, auto; empty: the driver's own settings count again)  2 least  3 most
-- Returns 1.

redis.call('HDEL', KEYS[1], 'bounds')
if ARGV[1] == '' then
  redis.call('HDEL', KEYS[1], 'mode', 'least', 'most')
else
  redis.call('HSET', KEYS[1], 'mode', ARGV[1], 'least', ARGV[2], 'most', ARGV[3])
end
redis.call('LPUSH', KEYS[2], 1)
redis.call('LTRIM', KEYS[2], 0, 0)
return 1
