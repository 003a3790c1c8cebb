-- Changes counters.
-- KEYS: the operation, the index, the counters.
-- ARGV: how (0 add, 1 undo the take of this operation, 2 raise), seconds to remember;
-- for each counter: bucket, expires, tokens, calls.
local how = ARGV[1]
local was = redis.call('GET', KEYS[1])
if how == '0' and was then
  return 'known'
end
local undo = { 0, 0 }
if how == '1' and was then
  local n = {}
  for s in string.gmatch(was, '[^,]+') do
    n[#n + 1] = tonumber(s)
  end
  undo = { n[9], n[10] }
end
for i = 1, #KEYS - 2 do
  local at, key = 4 * i - 2, KEYS[i + 2]
  for j, kind in ipairs({ ':t', ':c' }) do
    local field, n = ARGV[at + 1] .. kind, tonumber(ARGV[at + 2 + j])
    local is = tonumber(redis.call('HGET', key, field) or 0)
    if how == '1' then
      n = -undo[j]
    end
    if how == '2' then
      n = math.max(is, n)
    else
      n = math.max(is + n, 0)
    end
    redis.call('HSET', key, field, string.format('%.0f', n))
  end
  if tonumber(ARGV[at + 2]) > redis.call('EXPIRETIME', key) then -- a change that is late shortens no life
    redis.call('EXPIREAT', key, ARGV[at + 2])
    redis.call('ZADD', KEYS[2], ARGV[at + 2], key)
  end
end
if how ~= '2' then
  -- A take of this id that arrives later takes nothing.
  redis.call('SET', KEYS[1], '0,0,1,0,0,0,-1,0,0,0', 'EX', ARGV[2])
end
return 'done'
