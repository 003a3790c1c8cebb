package wire

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fragment is what Salvage returns.
type fragment struct {
	id     []byte
	method string
}

func TestSalvage(t *testing.T) {
	big := strings.Repeat("x", 10000)
	for in, want := range map[string]fragment{
		`{"jsonrpc":"2.0","id":12,"result":"` + big + `"}`:                   {id: []byte("12")},
		`{"result":{"id":99,"x":"` + big + `"},"jsonrpc":"2.0", "id" : 12 }`: {id: []byte("12")},
		`{"id":"a\"b","method":"m","params":"` + big + `"}`:                  {id: []byte(`"a\"b"`), method: "m"},
		`{"method":"notifications/x","params":"` + big + `"}`:                {method: "notifications/x"},
		`{"result":"` + big + `","id":12,"jsonrpc":"2.0"}`:                   {id: []byte("12")},
		`{"result":"` + big + `"}`:                                           {},
		`{"result":{"text":"` + big + `, \"id\": 7}"}}`:                      {},
		`{"jsonrpc":"2.0","result":{"deep":"` + big + `","id":5}}`:           {},
		`["` + big + `"]`: {},
	} {
		b := Bounded{Max: 1000}
		b.Add([]byte(in))
		id, method := Salvage(b.Head, b.Tail)
		got := fragment{id, method}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(fragment{})); diff != "" {
			t.Errorf("Salvage of %.60s… (-want +got)\n%s", in, diff)
		}
	}
}
