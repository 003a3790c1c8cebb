package extract

import (
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Limits of what is converted for a jq program. They hold also where the system limits no memory. Previews offer
// jq by those that are exported.
const (
	MaxConvert = 4 << 20 // bytes of YAML, XML or CSV
	LargeYAML  = 1 << 20 // bytes; reading this as YAML may take all memory, so CSV is tried first
	maxNested  = 1000    // levels of YAML and XML
	maxValues  = 2 << 20 // values of YAML, aliases included, and of XML
)

var errTooMuch = fmt.Errorf("it has over %d values or %d levels", maxValues, maxNested)

// readInput returns a text as the input of a jq program. It reads JSON, also between lines of other
// text, and else converts XML, YAML or CSV of at most most bytes. note says what was done to a text that
// is not JSON alone.
func readInput(text string, most int) (input any, note string, err error) {
	if strings.TrimSpace(text) == "" { // also of characters that are no blanks of JSON
		return nil, "", errEmpty
	}
	input, notJSON := decode(text)
	if notJSON == nil {
		return input, "", nil
	}
	values, size, lines, err := jsonAmong(text)
	if err != nil {
		return nil, "", err
	}
	if size <= len(text)/2 && len(text) <= most {
		if input, note := fromEmbedded(text); input != nil {
			return input, note, nil
		}
		converters := []func(string) (any, string, error){fromXML, fromYAML, fromCSV}
		if len(text) > LargeYAML {
			converters = []func(string) (any, string, error){fromXML, fromCSV, fromYAML}
		}
		for _, convert := range converters {
			switch input, note, err := convert(text); {
			case errors.Is(err, errTooMuch):
				return nil, "", wrong("jq", "the text can't be converted to JSON: %v; use grep, search or lines", err)
			case err == nil:
				return input, note, nil
			}
		}
		if input, note, err := convertAmong(text); err == nil {
			return input, note, nil
		}
	}
	note = fmt.Sprintf("[jq skipped what is not JSON: %d lines]", lines)
	if lines == 1 {
		note = "[jq skipped what is not JSON: 1 line]"
	}
	switch {
	case len(values) == 1:
		return values[0], note, nil
	case len(values) > 0:
		return values, note, nil
	case len(text) > most:
		return nil, "", wrong("jq", "the text is not JSON, and its %d bytes are too many to convert, the limit is %d: use grep, search or lines", len(text), most)
	}
	return nil, "", wrong("jq", "the text is not JSON (%v), nor is it YAML, XML or CSV: use grep, search or lines", notJSON)
}

// readResults reads the results that are texts, each like a text of its own, and says which it
// converted. A text that can't be read stays a string. Together at most LargeYAML bytes are converted; the
// note says how many of the others stay strings.
func readResults(input any) (note string) {
	items, _ := input.([]any)
	left, notes, times, over := LargeYAML, []string{}, map[string]int{}, 0
	for _, item := range items {
		of, _ := item.(map[string]any)
		text, ok := of["result"].(string)
		if !ok {
			continue
		}
		tried := len(text) <= left
		value, note, err := readInput(text, left)
		if err == nil {
			of["result"] = value
		}
		if (err != nil || note != "") && tried {
			left -= len(text)
		}
		if err != nil {
			if !tried && startConverts(text) {
				over++
			}
			continue
		}
		if note != "" || !json.Valid([]byte(text)) { // it is not one JSON value
			of["text"] = text
		}
		if note == "" {
			continue
		}
		if times[note]++; times[note] == 1 {
			notes = append(notes, note)
		}
	}
	for i, n := range notes {
		notes[i] = fmt.Sprintf("%s (%d of %d results, with the text in .text)", n, times[n], len(items))
	}
	if over > 0 {
		notes = append(notes, fmt.Sprintf("[jq left %d of %d results as text: it converts %d KiB of YAML, XML and CSV of a batch; make smaller batches, or use grep]", over, len(items), LargeYAML>>10))
	}
	return strings.Join(notes, "\n")
}

// startConverts reports whether a text begins like one that can be converted.
func startConverts(text string) bool {
	const enough = 8 << 10
	text = strings.TrimSpace(text[:min(len(text), enough)])
	if strings.HasPrefix(text, "<") {
		return true
	}
	_, _, err := readInput(text[:max(strings.LastIndexByte(text, '\n'), 0)], enough)
	return err == nil && strings.Contains(text, "\n")
}

// Limits of the other text around YAML and CSV.
const (
	MaxAmong  = 256 << 10 // bytes of a text in which YAML or CSV is looked for
	MaxAround = 3         // lines of other text before it, and after it
)

// startsYAML matches the lines that YAML among other text may begin with, likeYAML lines that are not left
// out before it.
var (
	startsYAML = regexp.MustCompile(`^(?:---|- |["']?[\w./-]+["']?:(?:\s|$))`)
	likeYAML   = regexp.MustCompile(`^\S.*?:(?:\s|$)`)
)

// convertAmong converts YAML or CSV of several lines that has a few lines of other text before or after
// it, such as a warning or an exit status.
func convertAmong(text string) (any, string, error) {
	lines := strings.SplitAfter(strings.TrimSpace(text)+"\n", "\n")
	lines = lines[:len(lines)-1]
	for around := 1; around <= 2*MaxAround && len(text) <= MaxAmong; around++ {
		for before := max(around-MaxAround, 0); before <= min(around, MaxAround); before++ {
			to := len(lines) - (around - before)
			if to-before < 3 {
				continue
			}
			part := strings.Join(lines[before:to], "")
			input, note, err := any(nil), "", errors.New("rows are left out")
			if at := strings.IndexAny(lines[before], ",;\t|"); at >= 0 && !strings.Contains(strings.Join(lines[:before], "")+strings.Join(lines[to:], ""), lines[before][at:at+1]) {
				input, note, err = fromCSV(part)
			}
			if err != nil && startsYAML.MatchString(part) && (before == 0 || !likeYAML.MatchString(lines[before-1])) {
				input, note, err = fromYAML(part)
			}
			if err == nil {
				return input, fmt.Sprintf("%s; lines around it left out: %d]", strings.TrimSuffix(note, "]"), around), nil
			}
		}
	}
	return nil, "", errors.New("no YAML or CSV among other text")
}

// jsonAmong returns the JSON objects and arrays that begin with a line of a text and end with one, and
// the bytes they have. skipped counts the lines around them. It is an error if the text ends within
// the first one. The time is linear: faults may use as many bytes as the text has eight times.
func jsonAmong(text string) (values []any, size, skipped int, err error) {
	work := 8 * len(text)
	for line := 1; text != ""; {
		end := strings.IndexByte(text, '\n') + 1
		if end == 0 {
			end = len(text)
		}
		if t := strings.TrimLeft(text[:end], " \t"); t == "" || (t[0] != '{' && t[0] != '[') || work <= 0 {
			if strings.TrimSpace(t) != "" {
				skipped++
			}
			text, line = text[end:], line+1
			continue
		}
		found, n, used := jsonLines(text)
		work -= used
		switch {
		case n < 0 && len(values) > 0:
			return values, size, skipped + strings.Count(text, "\n") + 1, nil
		case n < 0:
			return nil, 0, 0, wrong("jq", "the JSON that begins in line %d is cut off at the end of the text: use grep, search or lines", line)
		case n == 0: // this line is other text, too
			n, skipped = end, skipped+1
		default:
			values, size = append(values, found...), size+n
		}
		line += strings.Count(text[:n], "\n")
		text = text[n:]
	}
	return values, size, skipped, nil
}

// jsonLines returns the values at the start of a text, up to the first one that ends with its line.
// n is the bytes they have, 0 if there are none, and -1 if the text ends within one. read is the bytes
// that were looked at.
func jsonLines(text string) (values []any, n, read int) {
	for {
		dec := json.NewDecoder(strings.NewReader(text[n:]))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			switch syntax, ok := errors.AsType[*json.SyntaxError](err); {
			case errors.Is(err, io.ErrUnexpectedEOF):
				return nil, -1, len(text)
			case ok:
				return nil, 0, n + int(syntax.Offset)
			}
			return nil, 0, len(text)
		}
		n += int(dec.InputOffset())
		values = append(values, v)
		rest := strings.TrimLeft(text[n:], " \t\r")
		switch {
		case rest == "" || rest[0] == '\n':
			return values, n, n
		case rest[0] != '{' && rest[0] != '[':
			return nil, 0, n
		}
	}
}

// fromEmbedded reads the values that [Embeds] finds. input is nil if there are none.
func fromEmbedded(text string) (input any, note string) {
	var all []any
	for _, e := range Embeds(text) {
		v, err := decode(string(e.JSON))
		if err != nil {
			return nil, ""
		}
		all = append(all, v)
	}
	switch len(all) {
	case 0:
		return nil, ""
	case 1:
		return all[0], "[jq read the value in the text as JSON]"
	}
	return all, fmt.Sprintf("[jq read the %d values in the text as JSON]", len(all))
}

// fromYAML converts YAML. Each document must be a mapping or a sequence, because any text is a YAML
// string.
func fromYAML(text string) (_ any, note string, err error) {
	defer func() {
		if r := recover(); r != nil { // a fault of the library
			err = fmt.Errorf("YAML: %v", r)
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(text))
	var docs []any
	left := maxValues
	for {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, "", err
		}
		switch v.(type) {
		case nil: // such as an empty document at the end
			continue
		case map[string]any, []any: // mappings have texts as keys
		default:
			return nil, "", errors.New("YAML: a mere string")
		}
		if v, err = plainValue(v, &left, maxNested); err != nil {
			return nil, "", err
		}
		docs = append(docs, v)
	}
	switch len(docs) {
	case 0:
		return nil, "", errors.New("YAML: no document")
	case 1:
		return docs[0], "[jq read YAML as JSON]", nil
	}
	return docs, fmt.Sprintf("[jq read YAML as JSON: an array of its %d documents]", len(docs)), nil
}

// plainValue returns a value of YAML as package gojq wants it. It copies what aliases share, and takes
// each value from left.
func plainValue(v any, left *int, depth int) (any, error) {
	if *left--; *left < 0 || depth < 0 {
		return nil, errTooMuch
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, inner := range v {
			var err error
			if out[k], err = plainValue(inner, left, depth-1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, inner := range v {
			var err error
			if out[i], err = plainValue(inner, left, depth-1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case nil, bool, string, float64:
		return v, nil
	case int, int64, uint64:
		return json.Number(fmt.Sprint(v)), nil
	}
	return fmt.Sprint(v), nil
}

// fromXML converts XML: an element with attributes or children becomes an object, in which attributes
// are "@name", the text is "#text", and elements of the same name are an array. Other elements become
// their text. It expands no entities that the text defines. Text around the elements is left out.
func fromXML(text string) (any, string, error) {
	start := strings.IndexByte(text, '<')
	before := text[:max(start, 0)]
	if start < 0 || strings.Trim(before[strings.LastIndexByte(before, '\n')+1:], " \t\uFEFF") != "" {
		return nil, "", errors.New("XML: no line begins with an element")
	}
	dec := xml.NewDecoder(strings.NewReader(text[start:]))
	dec.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil } // the text is UTF-8
	name := func(n xml.Name) string { return strings.TrimPrefix(n.Space+":"+n.Local, ":") }
	root := &element{members: map[string]any{}}
	open, left := []*element{root}, maxValues
	for {
		token, err := dec.RawToken() // prefixes as they are
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", err
		}
		top := open[len(open)-1]
		switch t := token.(type) {
		case xml.StartElement:
			if left -= 1 + len(t.Attr); left < 0 || len(open) > maxNested {
				return nil, "", errTooMuch
			}
			e := &element{name: name(t.Name)}
			for _, a := range t.Attr {
				e.add("@"+name(a.Name), a.Value)
			}
			open = append(open, e)
		case xml.EndElement:
			if top == root || top.name != name(t.Name) {
				return nil, "", fmt.Errorf("XML: </%s> closes nothing", name(t.Name))
			}
			open = open[:len(open)-1]
			said := strings.TrimSpace(top.text.String())
			if top.members == nil {
				open[len(open)-1].add(top.name, said)
				continue
			}
			if said != "" {
				top.members["#text"] = said
			}
			open[len(open)-1].add(top.name, top.members)
		case xml.CharData:
			if top != root {
				top.text.Write(t)
			}
		}
	}
	if len(open) > 1 || len(root.members) == 0 {
		return nil, "", errors.New("XML: not all elements are closed")
	}
	return root.members, `[jq read XML as JSON: attributes are "@name", text beside them "#text", repeated elements arrays]`, nil
}

// element is an element of XML that is not closed yet.
type element struct {
	name    string
	members map[string]any // nil if there are none
	text    strings.Builder
}

// add adds an attribute or a child.
func (e *element) add(name string, value any) {
	if e.members == nil {
		e.members = map[string]any{}
	}
	switch others := e.members[name].(type) {
	case nil:
		e.members[name] = value
	case []any:
		e.members[name] = append(others, value)
	default:
		e.members[name] = []any{others, value}
	}
}

// fromCSV converts lines of values separated by commas, tabs, semicolons or bars. If the first line has
// names, each other line becomes an object, else each an array.
func fromCSV(text string) (any, string, error) {
	for _, comma := range ",\t;|" {
		r := csv.NewReader(strings.NewReader(text))
		r.Comma = comma
		rows, err := r.ReadAll()                                                                    // each line must have as many values as the first
		if err != nil || len(rows) < 2 || len(rows[0]) < 2 || strings.HasPrefix(rows[0][0], "- ") { // a list of YAML
			continue
		}
		named, seen := true, map[string]bool{} // there may be 100,000 columns
		for i, n := range rows[0] {
			n = strings.TrimSpace(n)
			_, err := strconv.ParseFloat(n, 64)
			named = named && n != "" && err != nil && !seen[n]
			rows[0][i], seen[n] = n, true
		}
		out := make([]any, len(rows))
		for n, row := range rows {
			if named {
				object := map[string]any{}
				for i, value := range row {
					object[rows[0][i]] = value
				}
				out[n] = object
				continue
			}
			array := make([]any, len(row))
			for i, value := range row {
				array[i] = value
			}
			out[n] = array
		}
		if named {
			return out[1:], "[jq read CSV as JSON: an object a row, all values strings]", nil
		}
		return out, "[jq read CSV as JSON: an array a row, all values strings]", nil
	}
	return nil, "", errors.New("CSV: lines differ in their number of values")
}
