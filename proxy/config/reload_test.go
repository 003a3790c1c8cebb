package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Every key is either taken over by a reload or kept until a restart, and the list of changes says
// which.
func TestOverEveryKey(t *testing.T) {
	var seen []string
	var each func(v reflect.Value, key string, change func(path []int) Config, path []int)
	each = func(v reflect.Value, key string, change func(path []int) Config, path []int) {
		for _, f := range reflect.VisibleFields(v.Type()) {
			name := f.Tag.Get("yaml")
			if name == "" || name == "-" {
				continue
			}
			key, path := join(key, name), append(slices.Clone(path), f.Index...)
			if f.Type.Kind() == reflect.Struct && !slices.Contains(restart, key) {
				each(v.FieldByIndex(f.Index), key, change, path)
				continue
			}
			after := change(path)
			next, changed, kept := after.Over(Default())
			seen = append(seen, key)
			got := reflect.ValueOf(next).FieldByIndex(path).Interface()
			if slices.Contains(restart, key) {
				if !slices.Equal(kept, []string{key}) || len(changed) > 0 || !reflect.DeepEqual(got, reflect.ValueOf(Default()).FieldByIndex(path).Interface()) {
					t.Errorf("%s: changed %v, kept %v, value %v: want it kept", key, changed, kept, got)
				}
			} else if len(kept) > 0 || len(changed) == 0 || !strings.HasPrefix(changed[0], key) || !reflect.DeepEqual(got, reflect.ValueOf(after).FieldByIndex(path).Interface()) {
				t.Errorf("%s: changed %v, kept %v, value %v: want it taken over", key, changed, kept, got)
			}
		}
	}
	each(reflect.ValueOf(Default()), "", func(path []int) Config {
		c := Default()
		set(reflect.ValueOf(&c).Elem().FieldByIndex(path))
		return c
	}, nil)
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range restart {
		if !slices.Contains(seen, key) {
			t.Errorf("there is no key %s", key)
		}
		if !strings.Contains(string(page), "`"+key+"`") {
			t.Errorf("docs/operations.md does not say that %s needs a restart", key)
		}
	}
	_, table, _ := strings.Cut(string(page), "## Changing the configuration")
	table, _, _ = strings.Cut(table, "## ")
	for _, key := range seen {
		top, _, _ := strings.Cut(key, ".")
		if !strings.Contains(table, "`"+key+"`") && !strings.Contains(table, "`"+top+"`") && top != "upstreams" && top != "principals" {
			t.Errorf("docs/operations.md does not say what a reload of %s does", key)
		}
	}
}

// set gives v a value that no default has.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("other")
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 7)
	case reflect.Float64:
		v.SetFloat(v.Float() + 0.07)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		set(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		set(key)
		set(value)
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				set(v.Field(i))
				return
			}
		}
	}
}
