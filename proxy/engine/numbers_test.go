package engine

import (
	"context"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/config"
)

// number is a number of a configuration.
type number struct {
	key string
	v   reflect.Value
}

// numbers returns the numbers in v, without those of types that are read from text.
func numbers(v reflect.Value, key string) (all []number) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("yaml"); name != "" && name != "-" {
				all = append(all, numbers(v.Field(i), strings.TrimPrefix(key+"."+name, "."))...)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return numbers(v.Elem(), key)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if v.MapIndex(k).Kind() == reflect.Pointer { // others can't be set
				all = append(all, numbers(v.MapIndex(k), key+"."+k.String())...)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			all = append(all, numbers(v.Index(i), key)...)
		}
	case reflect.Int, reflect.Float64:
		all = append(all, number{key, v})
	}
	return all
}

// Each number of the configuration has bounds, and an engine starts with the least and with the most of each
// that the configuration accepts. No time or size within the bounds overflows.
func TestNumbersAreBounded(t *testing.T) {
	units := map[string]int64{"_ms": int64(time.Millisecond), "_seconds": int64(time.Second), "_hours": int64(time.Hour), "_days": int64(24 * time.Hour), "_mb": 1 << 20}
	for name, ends := range map[string]struct {
		i int64
		f float64
	}{"least": {math.MinInt64, math.Inf(-1)}, "most": {math.MaxInt64, math.Inf(1)}} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.StateDir = t.TempDir()
			cfg.Upstreams = map[string]*config.Upstream{"up": {Command: []string{"x"}, IdleSeconds: new(int)}}
			cfg.Budgets.Limits = []limits.Limit{{Name: "l", Per: "session", Calls: 1}}
			if f := cfg.Validate(); len(f) > 0 {
				t.Fatal(f)
			}
			valid := func() bool { return len(cfg.Validate()) == 0 }
			all := numbers(reflect.ValueOf(&cfg).Elem(), "")
			for _, n := range all {
				if n.v.Kind() == reflect.Float64 {
					good, bad := n.v.Float(), ends.f
					if n.v.SetFloat(math.NaN()); valid() {
						t.Errorf("%s: NaN is accepted", n.key)
					}
					if n.v.SetFloat(bad); valid() {
						t.Errorf("%s: %v is accepted", n.key, bad)
					}
					for bad = math.Copysign(1e9, bad); math.Abs(good-bad) > 1e-6; {
						if n.v.SetFloat(good + (bad-good)/2); valid() {
							good = n.v.Float()
						} else {
							bad = n.v.Float()
						}
					}
					n.v.SetFloat(good)
					continue
				}
				good := n.v.Int()
				if n.v.SetInt(ends.i); valid() {
					t.Errorf("%s: %d is accepted", n.key, ends.i)
				}
				for step := ends.i / 2; step != 0; step /= 2 {
					if n.v.SetInt(good + step); valid() {
						good += step
					}
				}
				n.v.SetInt(good)
				for end, unit := range units {
					if strings.HasSuffix(n.key, end) && good > math.MaxInt64/unit {
						t.Errorf("%s: %d is accepted, and overflows", n.key, good)
					}
				}
			}
			if len(all) < 30 {
				t.Errorf("there are only %d numbers", len(all))
			}
			lifetime, end := context.WithCancel(t.Context())
			defer end()
			e, err := Open(lifetime, Options{Start: cfg, Config: func() *config.Config { return &cfg }, Limits: func() *interceptor.Limits { return nil }, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			l, err := e.NewLimits(cfg.Budgets)
			if err != nil {
				t.Error(err)
			} else {
				l.Close(t.Context())
			}
			end()
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
