//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/redistest"
)

// has reports whether the answer to a command has the text. An error has it not: a server that changes
// its role closes its connections.
func has(s *redistest.Server, text string, args ...string) bool {
	out, err := s.CLI(args...)
	return err == nil && strings.Contains(out, text)
}

// replicates waits until one of the replicas has what is written to the master. One that is online still has
// nothing of it until it has loaded all and says so, up to a second later.
func replicates(t *testing.T, master *redistest.Server, replicas ...*redistest.Server) {
	t.Helper()
	until(t, "the master takes a key", func() bool { return has(master, "OK", "SET", "{foldgate:foldgate}written", "1") })
	until(t, "a replica has the key", func() bool {
		return slices.ContainsFunc(replicas, func(s *redistest.Server) bool { return s != master && has(s, "1", "DBSIZE") })
	})
}

// sentinel starts a master with a replica and a sentinel. It returns the URL, the master, and what
// reports whether the replica is the master.
func sentinel(t *testing.T) (url string, master *redistest.Server, over func() bool) {
	master = redistest.New(t)
	replica := redistest.New(t, "--replicaof", "127.0.0.1 "+master.Port, "--repl-diskless-sync-delay", "0")
	replicates(t, master, replica)
	watch := redistest.Sentinel(t, master, "sentinel down-after-milliseconds budgets 500", "sentinel failover-timeout budgets 3000")
	until(t, "the sentinel knows the replica", func() bool { return has(watch, replica.Port, "SENTINEL", "REPLICAS", "budgets") })
	return watch.URL() + "?master_set=budgets", master, func() bool { return has(replica, "role:master", "INFO", "replication") }
}

// cluster starts three masters with a replica each. The master is the one that has the counts.
func cluster(t *testing.T) (url string, master *redistest.Server, over func() bool) {
	var all []*redistest.Server
	create := []string{"--cluster", "create", "--cluster-yes", "--cluster-replicas", "1"}
	for range 6 {
		s := redistest.New(t, "--cluster-enabled", "yes", "--cluster-port", freeport.For(t), "--cluster-node-timeout", "1000",
			"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
		all, create = append(all, s), append(create, "127.0.0.1:"+s.Port)
	}
	if _, err := all[0].CLI(create...); err != nil {
		t.Fatal(err)
	}
	const key = "{foldgate:foldgate}:index"
	owns := func(s *redistest.Server) bool {
		size, err := s.CLI("ZCARD", key)
		return err == nil && !strings.Contains(size, "MOVED") && has(s, "role:master", "INFO", "replication")
	}
	until(t, "each node knows the slot, and the masters have replicas", func() bool {
		masters, owners := 0, 0
		for _, s := range all {
			if has(s, "state=online", "INFO", "replication") {
				masters++
			}
			if has(s, "cluster_state:ok", "CLUSTER", "INFO") && owns(s) {
				owners++
			}
		}
		return masters == 3 && owners == 1
	})
	i := slices.IndexFunc(all, owns)
	if i < 0 {
		t.Fatal("no node has the slot")
	}
	replicates(t, all[i], all...)
	return all[(i+1)%6].URL() + "?addr=127.0.0.1:" + all[(i+2)%6].Port, all[i], func() bool {
		return slices.ContainsFunc(all, func(s *redistest.Server) bool {
			return s != all[i] && owns(s) && has(s, "cluster_state:ok", "CLUSTER", "INFO")
		})
	}
}

// foldgate check says what is wrong about the store of the limits. An agent is told that it can't be
// reached, and not where it is.
func TestCheckTriesTheStore(t *testing.T) {
	t.Parallel()
	port := redistest.New(t, "--requirepass", "open").Port
	g := newGateway(t, "")
	for password, want := range map[string]string{"open": "", "wrong-password": "check user and password"} {
		g.configure(limited(t, "    - {name: all, per: all, tokens: 1k, window: 1mo}\n", "store: {url: \"redis://:"+password+"@127.0.0.1:"+port+"\"}\n"))
		out, code := g.operate("check")
		if (code == 1) != (want != "") || !strings.Contains(out, want) || strings.Contains(out, "wrong-password") {
			t.Errorf("check with the password %s: %d %s", password, code, out)
		}
		ctx := testContext(t)
		c := g.connect(ctx, "stdio", mcpclient.Legacy)
		text := said(t, tool(t, c, ctx, "fake__text", `{"text":"x"}`))
		if strings.Contains(text, "limits_unavailable") != (want != "") || strings.Contains(text, port) {
			t.Errorf("a call with the password %s: %s", password, text)
		}
		until(t, "the log has "+want, func() bool { return strings.Contains(g.log.String(), want) })
		g.stop()
	}
}

// The master of the counts dies during calls, and its replica takes over. No call hangs, calls are
// refused meanwhile and made after it, and what was delivered is charged, but for what the master
// confirmed and did not send to its replica. Several limits match: in a cluster one slot has all.
func TestRedisFailsOver(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (string, *redistest.Server, func() bool){"sentinel": sentinel, "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit, callers, largest, reserve, waitMS = 1_000_000_000, 8, 130, 8192, 500
			url, master, over := start(t)
			g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 1G, window: 1mo}\n    - {name: person, per: principal, tokens: 1G, calls: 1M, window: rolling 30d}\n    - {name: tool, match: {tool: \"fake__*\"}, per: tool, tokens: 1G, window: 1w}\n",
				"  wait_ms: 500\nstore: {url: \""+url+"\"}\n"))
			ctx := testContext(t)
			s := spender{c: g.connect(ctx, "stdio", mcpclient.Modern)}
			var made, refusals, slowest atomic.Int64
			call := func() (ok bool) {
				began := time.Now()
				_, refused, err := s.call(ctx, "fake__text", `{"text":"@@","fill":100}`, "")
				if took := int64(time.Since(began)); took > slowest.Load() {
					slowest.Store(took)
				}
				switch {
				case err != nil:
					t.Error(err)
				case refused == nil:
					made.Add(1)
				case refused.Error.Code == "limits_unavailable":
					refusals.Add(1)
				default:
					t.Errorf("%+v", refused)
				}
				return err == nil && refused == nil
			}
			until(t, "calls are made", call)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for !t.Failed() {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond): // a refusal comes at once
							call()
						}
					}
				})
			}
			until(t, "there is load", func() bool { return made.Load() > 100 })
			master.Kill()
			until(t, "calls are refused", func() bool { return refusals.Load() > 0 })
			until(t, "the replica is the master", over)
			before := made.Load()
			until(t, "calls are made again", func() bool { return made.Load() > before+100 })
			close(stop)
			wg.Wait()
			until(t, "the store shows the limits", func() bool {
				return strings.Contains(said(t, tool(t, s.c, ctx, "branch_status", `{"session_id":"none"}`)), `"all"`)
			})
			lost := s.spent.Load()
			until(t, "what is reserved is given back", func() bool {
				lost = s.spent.Load() - int64(limit-leftOf(t, s.c, ctx, "all"))
				return lost > -callers*largest
			})
			t.Logf("%d calls made, %d refused, the slowest took %v; %d tokens received, %d of them not charged",
				made.Load(), refusals.Load(), time.Duration(slowest.Load()), s.spent.Load(), lost)
			if lost > reserve+callers*largest {
				t.Errorf("%d tokens of %d were not charged", lost, s.spent.Load())
			}
			if all, person := leftOf(t, s.c, ctx, "all"), leftOf(t, s.c, ctx, "person"); all != person {
				t.Errorf("limit all has %d left, person %d", all, person)
			}
			if d := time.Duration(slowest.Load()); d > 10*waitMS*time.Millisecond { // the machine is busy
				t.Errorf("a call took %v", d)
			}
		})
	}
}
