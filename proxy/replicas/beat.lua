-- Registers a replica and returns all: the time in milliseconds, then name and text of each.
-- KEYS: the hash of replicas. ARGV: name, text, milliseconds after which an absent one is forgotten, the most that are kept so long.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[1] ~= '' then
	redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
	redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local all = redis.call('HGETALL', KEYS[1])
local keep = tonumber(ARGV[3])
if #all / 2 > tonumber(ARGV[4]) then
	keep = 60000
end
local out = {string.format('%.0f', now)}
for i = 1, #all, 2 do
	if now - tonumber(string.match(all[i + 1], '^%d+') or 0) > keep then
		redis.call('HDEL', KEYS[1], all[i])
	else
		out[#out + 1] = all[i]
		out[#out + 1] = all[i + 1]
	end
end
return out
