-- drain: ask a session to finish what it has and stop; it learns so at its next beat.
--
-- KEYS 1 session
-- ARGV none
-- Returns 1 when asked, 0 when the session is gone: asking must not bring it back.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'drain', 1)
return 1
