package globs

import "testing"

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"*delete", "files/delete", true},
		{"a/*", "a/b/c", true},
		{"a?b", "a/b", true},
		{"{read,list}_*", "list_all", true},
		{"read", "reader", false},
		{"delete***", "delete", true},
		{"***", "", true},
		{"a*{*,x}*", "a", true},
		{"{delete**,drop}*", "delete", true},
		{"*****_x", "a/b_x", true},
		{`a\***`, "a*", true},
		{`a\***`, "ab", false},
		{`a\****`, "a*", true},
		{"a[", "a[", false},
	} {
		if got := Match(c.glob, c.name); got != c.want {
			t.Errorf("Match(%q, %q) = %v, want %v", c.glob, c.name, got, c.want)
		}
		if got := Any([]string{"x", c.glob}, c.name); got != c.want {
			t.Errorf("Any(%q, %q) = %v, want %v", c.glob, c.name, got, c.want)
		}
		if got, want := Valid(c.glob), c.glob != "a["; got != want {
			t.Errorf("Valid(%q) = %v, want %v", c.glob, got, want)
		}
	}
}
