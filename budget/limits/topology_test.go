package limits

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// spendAt lets two gateways take from one limit at a URL until it is spent, and checks its counter.
func spendAt(t *testing.T, url string) {
	t.Helper()
	var all []*Limits
	for range 2 {
		store, err := OpenRedis(url, "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a node can learn late that all slots are covered
			if _, err = store.Take(t.Context(), Op{ID: "none", Counters: []Counter{{Key: "none", Until: 1 << 40, Expires: 1 << 40}}}); err == nil || time.Now().After(end) {
				break
			}
		}
		l, err := New([]Limit{
			{Name: "all", Per: PerAll, Tokens: 5000, Window: window(t, "1mo")},
			{Name: "each", Per: PerPrincipal, Calls: 1e6, Window: window(t, "rolling 30d")},
		}, store, Options{Wait: 20 * time.Second, MaxResult: 100})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	var sum atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 40 {
				sum.Add(int64(all[i%2].Pay(t.Context(), Use{Principal: fmt.Sprint("p", i)}, 10)))
			}
		})
	}
	wg.Wait()
	for _, l := range all {
		l.settled(t)
	}
	if got := all[0].used(t, "all", ""); got.Tokens != sum.Load() || got.Tokens != 5000 {
		t.Errorf("%d were delivered, the counter has %+v, want 5000", sum.Load(), got)
	}
	if states, err := all[1].All(t.Context()); err != nil || len(states) < 5 {
		t.Errorf("All = %v, %v", states, err)
	}
}

func TestRedisCluster(t *testing.T) {
	var nodes []string
	for range 3 {
		r := newRedis(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t))
		nodes = append(nodes, "127.0.0.1:"+r.port)
	}
	out, err := exec.Command("redis-cli", append([]string{"--cluster", "create", "--cluster-yes"}, nodes...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "All 16384 slots covered") {
		t.Fatalf("cluster create: %v: %s", err, out)
	}
	spendAt(t, "redis://"+nodes[0]+"?addr="+nodes[1]+"&addr="+nodes[2])
}

func TestRedisSentinel(t *testing.T) {
	master := newRedis(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	if err := os.WriteFile(conf, []byte("sentinel monitor budgets 127.0.0.1 "+master.port+" 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sentinel := newRedis(t)
	sentinel.kill()
	sentinel.run(t, conf, "--sentinel", "--port", sentinel.port, "--bind", "127.0.0.1")
	spendAt(t, "redis://127.0.0.1:"+sentinel.port+"?master_set=budgets")
}

func TestRedisTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port := freePort(t)
	newRedis(t, "--tls-port", port, "--tls-cert-file", filepath.Join(dir, "cert"), "--tls-key-file", filepath.Join(dir, "key"), "--tls-ca-cert-file", filepath.Join(dir, "cert"), "--tls-auth-clients", "no")
	s, err := OpenRedis("rediss://127.0.0.1:"+port, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.List(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	spendAt(t, "rediss://127.0.0.1:"+port+"?skip_verify=true")
}
