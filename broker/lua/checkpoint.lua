-- checkpoint: save the tokens that requests have so far, for whoever must go on with them.
--
-- Only the batch that a request is assigned to may save; what a fenced worker still sends is ignored.
--
-- KEYS 1 batch  2 assigned  3 checkpoints
-- ARGV 1 batch id  2 session id  then, for each request: index, tokens
-- Returns requests saved.

if redis.call('HGET', KEYS[1], 'session') ~= ARGV[2] then return 0 end
local saved = 0
for i = 3, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[1] then
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
    saved = saved + 1
  end
end
return saved
