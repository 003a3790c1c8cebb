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

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/redistest"
)

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
				sum.Add(int64(pay(t, all[i%2], Use{Principal: fmt.Sprint("p", i)}, 10)))
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
		r := newRedis(t, "--cluster-enabled", "yes", "--cluster-port", freeport.For(t))
		nodes = append(nodes, "127.0.0.1:"+r.Port)
	}
	out, err := exec.Command("redis-cli", append([]string{"--cluster", "create", "--cluster-yes"}, nodes...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "All 16384 slots covered") {
		t.Fatalf("cluster create: %v: %s", err, out)
	}
	spendAt(t, "redis://"+nodes[0]+"?addr="+nodes[1]+"&addr="+nodes[2])
}

func TestRedisSentinel(t *testing.T) {
	sentinel := redistest.Sentinel(t, redistest.New(t))
	spendAt(t, sentinel.URL()+"?master_set=budgets")
}

// A sentinel names another master without a message that it does. The user of the ACL has what the
// page of limits says.
func TestRedisSentinelNamesAnotherMaster(t *testing.T) {
	t.Parallel()
	var masters []redisServer
	for range 2 {
		r := newRedis(t)
		r.cli(t, "ACL", "SETUSER", "gate", "on", ">pw", "~{foldgate:test}*", "+@read", "+@write", "+@scripting", "+@connection", "+cluster|slots", "+cluster|shards", "+time", "+role")
		masters = append(masters, r)
	}
	sentinel := redisServer{redistest.Sentinel(t, masters[0].Server)}
	s, err := OpenRedis("redis://gate:pw@127.0.0.1:"+sentinel.Port+"?master_set=budgets", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	op := Op{Counters: []Counter{{Key: "a:1:me", Until: 1 << 40, Expires: 1 << 40, Tokens: 10, Hard: true}}, Tokens: 1}
	if _, err := s.Take(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	sentinel.cli(t, "SENTINEL", "REMOVE", "budgets")
	sentinel.cli(t, "SENTINEL", "MONITOR", "budgets", "127.0.0.1", masters[1].Port, "1")
	for i, end := 0, time.Now().Add(30*time.Second); masters[1].cli(t, "EXISTS", "{foldgate:test}:c:a:1:me") == "0"; i++ {
		if time.Now().After(end) {
			t.Fatal("the store counts where no sentinel sends it")
		}
		op.ID = fmt.Sprint(i)
		_, _ = s.Take(t.Context(), op) // it can come while the connection changes
		time.Sleep(50 * time.Millisecond)
	}
}

// authority makes certificates for a server on the loopback interface.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T, name string) *authority {
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes a certificate and its key to NAME.crt and NAME.key.
func (a *authority) issue(t *testing.T, name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.Subject.CommonName, c.SerialNumber, c.NotAfter = name, big.NewInt(time.Now().UnixNano()), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{a.file(name + ".crt"): {Type: "CERTIFICATE", Bytes: der}, a.file(name + ".key"): {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// The URL names the authority to trust, a user of an ACL, and the certificate of the client. What is
// wrong about them the error says.
func TestRedisTLS(t *testing.T) {
	ours, others := newAuthority(t, "ca"), newAuthority(t, "ca")
	for _, name := range []string{"server", "client"} {
		for _, a := range []*authority{ours, others} {
			a.issue(t, name, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		}
	}
	server := func(clients, protocols string) (r redisServer, port string) {
		port = freeport.For(t)
		return newRedis(t, "--tls-port", port, "--tls-auth-clients", clients, "--tls-protocols", protocols,
			"--tls-cert-file", ours.file("server.crt"), "--tls-key-file", ours.file("server.key"), "--tls-ca-cert-file", ours.file("ca.crt")), port
	}
	plain, port := server("no", "TLSv1.2 TLSv1.3")
	plain.cli(t, "ACL", "SETUSER", "gate", "on", ">pw", "~{foldgate:test}*", "+@read", "+@write", "+@scripting", "+@connection", "+cluster|slots", "+cluster|shards", "+time")
	_, strict := server("yes", "TLSv1.2") // later ones can close a connection before they say why
	ca, client := "ca="+ours.file("ca.crt"), "&cert="+ours.file("client.crt")+"&key="+ours.file("client.key")
	for _, tt := range []struct{ url, want string }{
		{"rediss://127.0.0.1:" + port + "?" + ca, ""},
		{"rediss://gate:pw@127.0.0.1:" + port + "?" + ca, ""},
		{"rediss://127.0.0.1:" + port + "?skip_verify=true", ""},
		{"rediss://127.0.0.1:" + strict + "?" + ca + client, ""},
		{"rediss://127.0.0.1:" + port, "ca=FILE"},
		{"rediss://127.0.0.1:" + port + "?ca=" + others.file("ca.crt"), "ca=FILE"},
		{"rediss://localhost:" + port + "?" + ca, "wanted to match localhost"},
		{"rediss://gate:wrong@127.0.0.1:" + port + "?" + ca, "check user and password"},
		{"rediss://nobody:pw@127.0.0.1:" + port + "?" + ca, "check user and password"},
		{"rediss://127.0.0.1:" + strict + "?" + ca, "cert=FILE"},
		{"rediss://127.0.0.1:" + strict + "?" + ca + strings.ReplaceAll(client, ours.dir, others.dir), "cert=FILE"},
	} {
		s, err := OpenRedis(tt.url, "test")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		a, err := s.Take(t.Context(), Op{ID: "1", Counters: []Counter{{Key: "a:1:me", Until: 1 << 40, Expires: 1 << 40, Tokens: 10, Hard: true}}, Tokens: 7})
		if tt.want == "" && (err != nil || a.Tokens != 7) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %+v, %v, want %q", tt.url, a, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("the error has the password: %v", err)
		}
	}
	for query, want := range map[string]string{
		"ca=" + ours.file("none"):        "no such file",
		"ca=" + ours.file("ca.key"):      "no certificate",
		"ca=ca.crt":                      "absolute path",
		"cert=" + ours.file("ca.crt"):    "use both",
		"key=" + ours.file("client.key"): "use both",
		client[1:] + ".not":              "cert and key",
	} {
		for scheme, want := range map[string]string{"redis": "rediss://", "rediss": want} {
			if _, err := OpenRedis(scheme+"://h?"+query, "test"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s with %s: %v, want %q", scheme, query, err, want)
			}
		}
	}
}
