package limits

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/foldgate/foldgate/internal/redisdb"
)

// Both scripts are idempotent by the operation's id: redisdb.Do may send them again after a lost answer.
var (
	//go:embed take.lua
	takeText   string
	takeScript = valkey.NewLuaScript(takeText)
	//go:embed change.lua
	changeText   string
	changeScript = valkey.NewLuaScript(changeText)
)

// remote is the [Store] in Redis or Valkey. All keys have one hash tag: a cluster has them in one
// slot, and a script can change them together. Each counter is a hash with two fields for each of
// its parts; a sorted set has the keys of all counters by the time of their expiry.
type remote struct {
	*redisdb.DB
	most int64 // counters
	take *valkey.Lua
}

// OpenRedis returns a store in Redis 7 or Valkey, at a URL as of [redisdb.Open]. Gateways with one
// prefix share the counters. The store connects when it is used: a server that is down is no error
// here.
func OpenRedis(address, prefix string) (Store, error) {
	db, err := redisdb.Open(address, prefix)
	if err != nil {
		return nil, fmt.Errorf("store of the limits: %w", err)
	}
	return &remote{DB: db, most: maxCounters, take: takeScript}, nil
}

func (r *remote) Take(ctx context.Context, op Op) (Answer, error) {
	keys := []string{r.Prefix + "op:" + op.ID, r.Prefix + "index"}
	args := numbers(nil, op.Tokens, op.Calls, flag(op.Whole), op.ExtraTokens, op.ExtraCalls, int64(rememberOps/time.Second), share, r.most)
	for _, c := range op.Counters {
		keys = append(keys, r.Prefix+"c:"+c.Key)
		args = numbers(args, c.From, min(c.Until, maxExact), c.Bucket, c.Oldest, c.Expires, c.Tokens, c.Calls, flag(c.Hard))
	}
	text, err := redisdb.Do(ctx, r.DB, func(client valkey.Client) (string, error) {
		return r.take.Exec(ctx, client, keys, args).ToString()
	})
	if err != nil {
		return Answer{}, err
	}
	answer, err := readAnswer(text, len(op.Counters))
	if err != nil {
		return Answer{}, r.Diagnose(err)
	}
	return answer, nil
}

// maxExact is the largest whole number that a script has exactly.
const maxExact = 1 << 53

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func numbers(to []string, all ...int64) []string {
	for _, n := range all {
		to = append(to, strconv.FormatInt(n, 10))
	}
	return to
}

// readAnswer reads what take.lua returns.
func readAnswer(text string, counters int) (a Answer, err error) {
	var n []int64
	for s := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return a, fmt.Errorf("answer %q: %w", text, err)
		}
		n = append(n, v)
	}
	const head = 10
	if len(n) < head || n[0] < 0 || n[0] > math.MaxInt64/1000 {
		return a, fmt.Errorf("answer %q is not one", text)
	}
	a = Answer{
		Now: time.UnixMicro(n[0]), Stale: n[1] == 1, Refused: n[2] == 1,
		Tokens: n[3], ExtraTokens: n[4], ExtraCalls: n[5],
		Tightest: int(n[6]), TooFewCalls: n[7] == 1, taken: Used{n[8], n[9]},
	}
	if a.Refused && a.Tightest == undone.Tightest {
		return a, errUndone
	}
	if !a.Stale && len(n) != head+2*counters || a.Tightest < -1 || a.Tightest >= counters {
		return a, fmt.Errorf("answer %q is not one for %d counters", text, counters)
	}
	for n = n[head:]; len(n) > 1; n = n[2:] {
		a.Used = append(a.Used, Used{n[0], n[1]})
	}
	return a, nil
}

func (r *remote) Change(ctx context.Context, id string, how How, changes []Change) error {
	if id == "" {
		id = "none"
	}
	const most = 500 // keys of one script; each part is an operation of its own
	for part := 0; ; part++ {
		some := changes[:min(most, len(changes))]
		changes = changes[len(some):]
		op := id
		if part > 0 {
			op += "." + strconv.Itoa(part)
		}
		keys := []string{r.Prefix + "op:" + op, r.Prefix + "index"}
		args := numbers(nil, int64(how), int64(rememberOps/time.Second))
		for _, c := range some {
			keys = append(keys, r.Prefix+"c:"+c.Key)
			args = numbers(args, c.Bucket, c.Expires, c.Tokens, c.Calls)
		}
		_, err := redisdb.Do(ctx, r.DB, func(client valkey.Client) (string, error) {
			return changeScript.Exec(ctx, client, keys, args).ToString()
		})
		if err != nil || len(changes) == 0 {
			return err
		}
	}
}

func (r *remote) List(ctx context.Context, keys ...string) ([]Count, error) {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = r.Prefix + "c:" + keys[i]
	}
	return redisdb.Do(ctx, r.DB, func(client valkey.Client) (all []Count, err error) {
		keys := names
		if len(keys) == 0 {
			keys, err = client.Do(ctx, client.B().Zrange().Key(r.Prefix+"index").Min("0").Max("-1").Build()).AsStrSlice()
		}
		for len(keys) > 0 && err == nil {
			some := keys[:min(256, len(keys))]
			keys = keys[len(some):]
			var commands valkey.Commands
			for _, key := range some {
				commands = append(commands, client.B().Hgetall().Key(key).Build())
			}
			for i, got := range client.DoMulti(ctx, commands...) {
				fields, err := got.AsIntMap()
				if err != nil {
					return nil, err
				}
				counts := map[int64]Used{}
				for field, n := range fields {
					part, kind, _ := strings.Cut(field, ":")
					bucket, err := strconv.ParseInt(part, 10, 64)
					if err != nil {
						return nil, fmt.Errorf("counter %s: %w", some[i], err)
					}
					u := counts[bucket]
					if kind == "t" {
						u.Tokens = n
					} else {
						u.Calls = n
					}
					counts[bucket] = u
				}
				for bucket, u := range counts {
					all = append(all, Count{strings.TrimPrefix(some[i], r.Prefix+"c:"), bucket, u})
				}
			}
		}
		return all, err
	})
}

func (r *remote) Delete(ctx context.Context, keys []string) error {
	_, err := redisdb.Do(ctx, r.DB, func(client valkey.Client) (struct{}, error) {
		var commands valkey.Commands
		for _, key := range keys {
			key = r.Prefix + "c:" + key
			commands = append(commands, client.B().Del().Key(key).Build(), client.B().Zrem().Key(r.Prefix+"index").Member(key).Build())
		}
		for _, got := range client.DoMulti(ctx, commands...) {
			if err := got.Error(); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	return err
}
