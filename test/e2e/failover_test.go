//go:build e2e

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// redisCLI runs a command of redis-cli and returns what it prints. A server that changes its role closes
// its connections: what asks for the role asks again after an error.
func redisCLI(port string, args ...string) (string, error) {
	out, err := exec.Command("redis-cli", append([]string{"-p", port}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// redisHas reports whether the answer to a command has the text. No answer has it.
func redisHas(text, port string, args ...string) bool {
	out, err := redisCLI(port, args...)
	return err == nil && strings.Contains(out, text)
}

// redisPort starts a Redis server and returns its port and its process, once it answers.
func redisPort(t *testing.T, args ...string) (port string, p *os.Process) {
	t.Helper()
	url, start := redisServer(t, args...)
	p = start()
	port = url[strings.LastIndex(url, ":")+1:]
	until(t, "redis-server answers", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return port, p
}

// replicates waits until one of the replicas has what is written to the master. One that is online still has
// nothing of it until it has loaded all and says so, up to a second later.
func replicates(t *testing.T, master string, replicas ...string) {
	t.Helper()
	until(t, "the master takes a key", func() bool { return redisHas("OK", master, "SET", "{foldgate:foldgate}written", "1") })
	until(t, "a replica has the key", func() bool {
		return slices.ContainsFunc(replicas, func(port string) bool { return port != master && redisHas("1", port, "DBSIZE") })
	})
}

// sentinel starts a master with a replica and a sentinel. It returns the URL, the master, and what
// reports whether the replica is the master.
func sentinel(t *testing.T) (url string, master *os.Process, over func() bool) {
	at, master := redisPort(t)
	replica, _ := redisPort(t, "--replicaof", "127.0.0.1 "+at, "--repl-diskless-sync-delay", "0")
	replicates(t, at, replica)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	write(t, conf, "sentinel monitor budgets 127.0.0.1 "+at+" 1\nsentinel down-after-milliseconds budgets 500\nsentinel failover-timeout budgets 3000\n")
	watch, start := redisServer(t, conf, "--sentinel")
	start()
	port := watch[strings.LastIndex(watch, ":")+1:]
	until(t, "the sentinel knows the replica", func() bool { return redisHas(replica, port, "SENTINEL", "REPLICAS", "budgets") })
	return watch + "?master_set=budgets", master, func() bool { return redisHas("role:master", replica, "INFO", "replication") }
}

// cluster starts three masters with a replica each. The master is the one that has the counts.
func cluster(t *testing.T) (url string, master *os.Process, over func() bool) {
	var ports, nodes []string
	var all []*os.Process
	for range 6 {
		port, p := redisPort(t, "--cluster-enabled", "yes", "--cluster-port", freeport.For(t), "--cluster-node-timeout", "1000",
			"--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
		ports, nodes, all = append(ports, port), append(nodes, "127.0.0.1:"+port), append(all, p)
	}
	if out, err := redisCLI(ports[0], append([]string{"--cluster", "create", "--cluster-yes", "--cluster-replicas", "1"}, nodes...)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const key = "{foldgate:foldgate}:index"
	has := func(port string) bool {
		size, err := redisCLI(port, "ZCARD", key)
		return err == nil && !strings.Contains(size, "MOVED") && redisHas("role:master", port, "INFO", "replication")
	}
	until(t, "each node knows the slot, and the masters have replicas", func() bool {
		masters, owners := 0, 0
		for _, port := range ports {
			if redisHas("state=online", port, "INFO", "replication") {
				masters++
			}
			if redisHas("cluster_state:ok", port, "CLUSTER", "INFO") && has(port) {
				owners++
			}
		}
		return masters == 3 && owners == 1
	})
	for i, port := range ports {
		if has(port) {
			replicates(t, port, ports...)
			return "redis://" + nodes[(i+1)%6] + "?addr=" + nodes[(i+2)%6], all[i], func() bool {
				for j, port := range ports {
					if j != i && has(port) && redisHas("cluster_state:ok", port, "CLUSTER", "INFO") {
						return true
					}
				}
				return false
			}
		}
	}
	t.Fatal("no node has the slot")
	return "", nil, nil
}

// foldgate check says what is wrong about the store of the limits. An agent is told that it can't be
// reached, and not where it is.
func TestCheckTriesTheStore(t *testing.T) {
	t.Parallel()
	port, _ := redisPort(t, "--requirepass", "open")
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
	for name, start := range map[string]func(*testing.T) (string, *os.Process, func() bool){"sentinel": sentinel, "cluster": cluster} {
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
			_ = master.Kill()
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
