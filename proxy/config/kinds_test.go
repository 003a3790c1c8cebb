package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every key gets a value of every kind. Each fault has a key and its line, and no value of another kind is
// taken for a number.
func TestEveryKindOfValue(t *testing.T) {
	values := []string{"text", "7", "1.5", "true", "null", "[a, 1]", "{a: b}", "[[a]]", "[{a: b}]", "'1.5'", "-0.5", ".inf", "-.inf", ".nan", "'1e19'", "!!str 1.5", "&f 1.5"}
	wrong := []string{"1.5", "'1.5'", "-0.5", ".inf", "-.inf", ".nan", "'1e19'", "!!str 1.5", "&f 1.5"} // for whole numbers
	check := func(of reflect.Type, key, text, value string) {
		_, faults := parseText("", []byte(text+" "+value+"\n"), noEnv)
		for _, f := range faults {
			top, _, _ := strings.Cut(f.Key, ".")
			given := strings.HasPrefix(text, top+":")
			if f.Key == "" || f.Key == "syntax" || given && f.Line == 0 || strings.Contains(f.Msg, "parsing time") {
				t.Errorf("%s: %s: %+v", key, value, f)
			}
		}
		if of.Kind() == reflect.Int && slices.Contains(wrong, value) || of.Kind() == reflect.Float64 && strings.HasSuffix(value, "inf") || of.Kind() == reflect.Float64 && value == ".nan" {
			if len(faults) == 0 || faults[0].Key != key || faults[0].Line != strings.Count(text, "\n")+1 ||
				!strings.Contains(faults[0].Msg, "number") && faults[0].Msg != "is too large" {
				t.Errorf("%s: %s: %v, want a fault about the number", key, value, faults)
			}
		}
	}
	// each tries the keys of type in. above are the lines above them.
	var each func(in reflect.Type, key, above, indent string)
	each = func(in reflect.Type, key, above, indent string) {
		for _, f := range reflect.VisibleFields(in) {
			name := f.Tag.Get("yaml")
			if name == "" || name == "-" {
				continue
			}
			key, above, indent, of := join(key, name), above+indent+name+":", indent, f.Type
			for {
				if of.Kind() == reflect.Pointer {
					of = of.Elem()
				}
				for _, value := range values {
					check(of, key, above, value)
				}
				indent += "  "
				switch {
				case of.Kind() == reflect.Map:
					key, above = key+".x", above+"\n"+indent+"x:"
				case of.Kind() == reflect.Slice:
					key, above = key+"[0]", above+"\n"+indent+"-"
				default:
					if of.Kind() == reflect.Struct && of != reflect.TypeFor[time.Time]() {
						each(of, key, above+"\n", indent)
					}
				}
				if of.Kind() != reflect.Map && of.Kind() != reflect.Slice {
					break
				}
				of = of.Elem()
			}
		}
	}
	each(reflect.TypeFor[Config](), "", "", "")
	for _, text := range []string{
		"budget: {scale: &f 1.5}\nfolding: {max_depth: *f}\n", // a fraction by its name
		"folding: {max_depth: \"${HALF}\"}\n",
	} {
		_, faults := parseText("", []byte(text), func(string) (string, bool) { return "0.5", true })
		if len(faults) != 1 || faults[0].Key != "folding.max_depth" || faults[0].Line == 0 || faults[0].Msg != "must be a whole number" {
			t.Errorf("%s: %v", text, faults)
		}
	}
	for _, value := range []string{"1", "2.0", "0b10", "0x2", "1e0", "'2'"} {
		if _, faults := parseText("", []byte("folding: {max_depth: "+value+"}\n"), noEnv); len(faults) > 0 {
			t.Errorf("%s: %v", value, faults)
		}
	}
}
