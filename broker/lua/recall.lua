-- recall: ask a session to give back some of its requests; it learns so at its next beat.
--
-- They are those that it has not begun and, where these are fewer and `begun` is 1, others with their tokens so far.
--
-- Only the leader may (token compare). The first beat that finds an order takes it along: it is carried out once or, if
-- the answer to that beat is lost, not at all, and the leader then decides anew. With the session it ends.
--
-- KEYS 1 leader  2 session
-- ARGV 1 leader token  2 order id  3 how many requests  4 begun (0|1)
-- Returns 1 when asked, 0 when the session is dead or gone, or has been given this order before; -1 not the leader.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local session = redis.call('HMGET', KEYS[2], 'state', 'recall_id')
if not session[1] or session[1] == 'dead' or session[2] == ARGV[2] then return 0 end
local time = redis.call('TIME')
redis.call('HSET', KEYS[2], 'recall_id', ARGV[2], 'recall', ARGV[3], 'recall_begun', ARGV[4],
  'recall_ms', time[1] * 1000 + math.floor(time[2] / 1000))
return 1
