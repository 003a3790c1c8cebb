package config

import (
	"reflect"
	"slices"
	"strings"
)

// restart are the keys that take effect only when the gateway starts. docs/operations.md lists them.
var restart = []string{
	"listen", "tls", "state_dir", "folding.require_session_id", "folding.session_validation",
	"results.quota_mb", "results.ttl_hours", "budget.encoding", "budget.scale", "budget.image_tokens",
	"trace.payload", "trace.on_error", "trace.sync", "trace.sync_interval_ms", "trace.rotate_mb", "trace.retain_files", "trace.retain_days",
	"workflows", "store", "replicas", "tools", "logins", "budgets.metrics_by_principal",
}

// Over returns c as a running gateway can take it over from before: keys that need a restart keep
// their values. changed are the keys that differ and are taken over, kept those that need a restart.
// The keys of a map are each one key, such as principals.alice.
func (c Config) Over(before Config) (next Config, changed, kept []string) {
	next = c
	var compare func(new, old reflect.Value, key string)
	compare = func(new, old reflect.Value, key string) {
		switch {
		case slices.Contains(restart, key):
			if !reflect.DeepEqual(new.Interface(), old.Interface()) {
				kept = append(kept, key)
				new.Set(old)
			}
		case new.Kind() == reflect.Struct:
			for _, f := range reflect.VisibleFields(new.Type()) {
				if name := f.Tag.Get("yaml"); name != "" && name != "-" {
					compare(new.FieldByIndex(f.Index), old.FieldByIndex(f.Index), join(key, name))
				}
			}
		case new.Kind() == reflect.Map:
			for _, m := range [2]reflect.Value{new, old} {
				for _, k := range m.MapKeys() {
					at := join(key, k.String())
					a, b := new.MapIndex(k), old.MapIndex(k)
					if same := a.IsValid() && b.IsValid() && reflect.DeepEqual(a.Interface(), b.Interface()); !same && !slices.Contains(changed, at) {
						changed = append(changed, at)
					}
				}
			}
		case !reflect.DeepEqual(new.Interface(), old.Interface()):
			changed = append(changed, key)
		}
	}
	compare(reflect.ValueOf(&next).Elem(), reflect.ValueOf(&before).Elem(), "")
	if !slices.Equal(next.UpstreamKeys(), before.UpstreamKeys()) && !slices.ContainsFunc(changed, func(key string) bool { return strings.HasPrefix(key, "upstreams.") }) {
		changed = append(changed, "upstreams") // their order
	}
	slices.Sort(changed)
	return next, changed, kept
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
