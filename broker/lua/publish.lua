-- publish: send new text of requests that are being generated to whoever reads along.
--
-- Only the batch that a request is assigned to may: what a fenced worker still sends, or what comes after the output, is
-- ignored, so that the stream never outlives its job. Sent twice, an entry is there twice; each says where in the text it
-- begins, and readers drop what they have. Nobody has to read: the oldest entries go.
--
-- KEYS 1 batch  2 assigned  3 deltas
-- ARGV 1 batch id  2 session id  3 most entries, about  then, for each request: index, piece of text
-- Returns pieces published.

if redis.call('HGET', KEYS[1], 'session') ~= ARGV[2] then return 0 end
local published = 0
for i = 4, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[1] then
    redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'd', ARGV[i + 1])
    published = published + 1
  end
end
return published
