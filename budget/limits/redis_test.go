package limits

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/redistest"
)

// redisServer is a real server on the loopback interface.
type redisServer struct{ *redistest.Server }

func newRedis(t testing.TB, args ...string) redisServer {
	t.Helper()
	return redisServer{redistest.New(t, args...)}
}

func (r redisServer) open(t testing.TB) Store {
	t.Helper()
	s, err := OpenRedis(r.URL(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// cli runs a command of redis-cli.
func (r redisServer) cli(t testing.TB, args ...string) string {
	t.Helper()
	out, err := r.CLI(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// openAt opens the store at a URL of Redis or in a file.
func openAt(place string) (Store, error) {
	if strings.Contains(place, "://") {
		return OpenRedis(place, "test")
	}
	return OpenSQLite(place, slog.New(slog.DiscardHandler), nil)
}

// eachPlace runs a test with each kind of store, at a new place.
func eachPlace(t *testing.T, test func(t *testing.T, place string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, filepath.Join(t.TempDir(), "state", "budgets.db")) })
	t.Run("redis", func(t *testing.T) { test(t, newRedis(t).URL()) })
}

// eachStore runs a test with each kind of store. open opens one more store of the same counters.
func eachStore(t *testing.T, test func(t *testing.T, open func() Store)) {
	eachPlace(t, func(t *testing.T, place string) {
		test(t, func() Store {
			s, err := openAt(place)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		})
	})
}

func TestOpenRedisRefuses(t *testing.T) {
	for _, c := range [][2]string{{"http://h", "a"}, {"redis://h/x", "a"}, {"rediss://h?ca_file=/secret", "a"}, {"redis://u:top%zzsecret@h", "a"}, {"redis://u:topsecret@h:port", "a"}, {"redis://h", ""}, {"redis://h", "a}b"}, {"redis://h", strings.Repeat("a", 65)}} {
		if _, err := OpenRedis(c[0], c[1]); err == nil {
			t.Errorf("%v is taken", c)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// A server that evicts keys would forget what was spent.
func TestRedisThatEvicts(t *testing.T) {
	r := newRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	if _, err := r.open(t).List(t.Context()); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("List = %v", err)
	}
	r.cli(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	if _, err := r.open(t).List(t.Context()); err != nil {
		t.Error(err)
	}
}

// The URL carries a user of an ACL with few permissions, or a socket.
func TestRedisConnections(t *testing.T) {
	r := newRedis(t)
	r.cli(t, "ACL", "SETUSER", "gate", "on", ">pw", "~{foldgate:acl}*", "+@read", "+@write", "+@scripting", "+@connection", "+cluster|slots", "+cluster|shards", "+time")
	r.cli(t, "ACL", "SETUSER", "other", "on", ">pw", "~x*", "+@all")
	op := Op{ID: "1", Counters: []Counter{{Key: "a:1:me", Until: 1 << 40, Expires: 1 << 40, Tokens: 10, Hard: true}}, Tokens: 7}
	s, err := OpenRedis(fmt.Sprintf("redis://gate:pw@127.0.0.1:%s/0", r.Port), "acl")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := s.Take(t.Context(), op); err != nil || a.Tokens != 7 {
		t.Errorf("a user with few permissions: %+v, %v", a, err)
	}
	if l, err := s.List(t.Context()); err != nil || len(l) != 1 || s.Delete(t.Context(), []string{"a:1:me"}) != nil {
		t.Errorf("List = %v, %v", l, err)
	}
	for _, bad := range []string{"other:pw", "gate:wrong"} {
		s, err := OpenRedis(fmt.Sprintf("redis://%s@127.0.0.1:%s", bad, r.Port), "acl")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Take(t.Context(), op); err == nil || !strings.Contains(err.Error(), "check user and password") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	socket := filepath.Join(os.TempDir(), "limits-"+r.Port+".sock") // shorter than a test's directory
	defer os.Remove(socket)
	newRedis(t, "--unixsocket", socket)
	s, err = OpenRedis("unix://"+socket, "acl")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := s.Take(t.Context(), op); err != nil || a.Tokens != 7 {
		t.Errorf("by a socket: %+v, %v", a, err)
	}
}
