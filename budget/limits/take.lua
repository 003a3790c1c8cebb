-- Takes from all counters or from none; the same as Op.decide.
-- KEYS: the operation, the index, the counters.
-- ARGV: tokens, calls, whole, extra tokens, extra calls, seconds to remember, share, most counters;
-- for each counter: from, until, bucket, oldest, expires, tokens, calls, hard.
local was = redis.call('GET', KEYS[1])
if was then
  return was
end
local time = redis.call('TIME')
local now = tonumber(time[1])
local want, calls, whole = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local moment = time[1] .. string.format('%06d', time[2])

local function get(i) -- a counter, and what has been taken from it
  local at = 8 * i
  local c = {
    key = KEYS[i + 2], from = tonumber(ARGV[at + 1]), til = tonumber(ARGV[at + 2]), bucket = ARGV[at + 3],
    oldest = tonumber(ARGV[at + 4]), expires = ARGV[at + 5],
    tokens = tonumber(ARGV[at + 6]), calls = tonumber(ARGV[at + 7]), hard = ARGV[at + 8] == '1', t = 0, c = 0,
  }
  if c.bucket == '0' then
    local got = redis.call('HMGET', c.key, '0:t', '0:c')
    c.t, c.c = tonumber(got[1] or 0), tonumber(got[2] or 0)
    return c
  end
  local all, old = redis.call('HGETALL', c.key), {}
  for j = 1, #all, 2 do
    local part, kind = string.match(all[j], '^(%d+):(%a)$')
    part = tonumber(part)
    if part >= c.oldest then
      c[kind] = c[kind] + tonumber(all[j + 1])
    elseif part < 2 * c.oldest - tonumber(c.bucket) then
      old[#old + 1] = all[j]
    end
  end
  if #old > 0 then
    redis.call('HDEL', c.key, unpack(old))
  end
  return c
end

local function left(total, used)
  if total == 0 then
    return 2 ^ 53
  end
  return math.max(total - used, 0)
end

local all, tight, short, refused = {}, -1, 0, false
local got = want
for i = 1, #KEYS - 2 do
  local c = get(i)
  all[i] = c
  if now < c.from or now >= c.til then
    return moment .. ',1,0,0,0,0,-1,0,0,0'
  end
end
for i, c in ipairs(all) do
  if c.hard then
    local l = left(c.tokens, c.t)
    if l < got or l == 0 and not refused then
      got, tight, refused = math.min(got, l), i - 1, whole
    end
    if calls > 0 and left(c.calls, c.c) < calls then
      got, tight, short, refused = 0, i - 1, 1, true
      break
    end
  end
end
local extraTokens, extraCalls, takenTokens, takenCalls = 0, 0, 0, 0
if refused then
  got = 0
else
  if tight < 0 then
    extraTokens, extraCalls = tonumber(ARGV[4]), tonumber(ARGV[5])
    for _, c in ipairs(all) do
      extraTokens = math.min(extraTokens, math.floor(left(c.tokens, c.t + got) / tonumber(ARGV[7])))
      extraCalls = math.min(extraCalls, math.floor(left(c.calls, c.c + calls) / tonumber(ARGV[7])))
    end
  end
  takenTokens, takenCalls = got + extraTokens, calls + extraCalls
end
local answer = { refused and 1 or 0, got, extraTokens, extraCalls, tight, short, takenTokens, takenCalls }
for _, c in ipairs(all) do
  if takenTokens > 0 or takenCalls > 0 then
    redis.call('HINCRBY', c.key, c.bucket .. ':t', string.format('%.0f', takenTokens))
    redis.call('HINCRBY', c.key, c.bucket .. ':c', string.format('%.0f', takenCalls))
    if tonumber(c.expires) > redis.call('EXPIRETIME', c.key) then
      redis.call('EXPIREAT', c.key, c.expires)
      redis.call('ZADD', KEYS[2], c.expires, c.key)
    end
  end
  answer[#answer + 1] = c.t + takenTokens
  answer[#answer + 1] = c.c + takenCalls
end
for i, n in ipairs(answer) do
  answer[i] = string.format('%.0f', n)
end
local text = moment .. ',0,' .. table.concat(answer, ',')
redis.call('SET', KEYS[1], text, 'EX', ARGV[6])

-- What has expired leaves the index, a few at a time. If there are too many counters, those that
-- expire first go.
for _, key in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. time[1], 'LIMIT', 0, 4)) do
  redis.call('ZREM', KEYS[2], key)
  redis.call('DEL', key)
end
local most = tonumber(ARGV[8])
if redis.call('ZCARD', KEYS[2]) > most then
  local first = redis.call('ZPOPMIN', KEYS[2], 8)
  for j = 1, #first, 2 do
    redis.call('DEL', first[j])
  end
end
return text
