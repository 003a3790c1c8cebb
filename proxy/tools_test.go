package proxy

import (
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// The branch that pays is found by the names of arguments, so that another
// spelling of one, which a decoder would take as well, is no way around a budget.
func TestArgumentsAsTheSchemaSpellsThem(t *testing.T) {
	r := newRig(t, false, nil)
	r.initialize()
	for _, tc := range []struct{ tool, args, want string }{
		{"branch_read", `{"Handle":"res_x"}`, `branch_read takes no "Handle"; its arguments are handle, lines`},
		{"branch_read", `{"handle":"res_x","BRANCH_ID":"br_x"}`, `branch_read takes no "BRANCH_ID"`},
		{"branch_run", `{"Branch_id":"br_x","tool":"a","each":[{"Tool":1}]}`, `branch_run takes no "Branch_id"`},
		{"branch_run", `{"steps":[{"Tool":"a"}]}`, `steps[0] takes no "Tool"`},
		{"branch_return", `{"Branch_ID":"br_x","message":"m"}`, `branch_return takes no "Branch_ID"`},
		{"branch_create", `{"description":"d","parent_Branch_id":"br_x"}`, `branch_create takes no "parent_Branch_id"`},
	} {
		got, _ := rawjson.GetString([]byte(r.tool(tc.tool, tc.args)), "structuredContent", "error", "message")
		if !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s %s = %q, want %q", tc.tool, tc.args, got, tc.want)
		}
	}
}
