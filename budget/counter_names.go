package budget

import (
	"fmt"
	"slices"
	"strings"
)

// An encodingName maps a name that a user may write to the vocabulary that
// counts it. For ordinary text several published encodings are the same one:
// p50k_edit and o200k_harmony differ from their base only in special tokens,
// which are never recognised here, and gpt2 is r50k_base in another file format.
type encodingName struct {
	name       string
	vocabulary string
}

var encodingNames = []encodingName{
	{"cl100k_base", "cl100k_base"},
	{"gpt2", "r50k_base"},
	{"o200k_base", "o200k_base"},
	{"o200k_harmony", "o200k_base"},
	{"p50k_base", "p50k_base"},
	{"p50k_edit", "p50k_base"},
	{"r50k_base", "r50k_base"},
}

// A modelName maps a model, or every model that starts with a prefix ending in
// "*", to an encoding.
type modelName struct {
	pattern  string
	encoding string
}

// modelNames follows the tables of OpenAI's tiktoken (tiktoken/model.py) and of
// tiktoken-go. An exact name is preferred to a prefix, a longer prefix to a
// shorter one.
var modelNames = []modelName{
	{"gpt-5", "o200k_base"},
	{"gpt-5-*", "o200k_base"},
	{"gpt-5.*", "o200k_base"},
	{"o1", "o200k_base"},
	{"o1-*", "o200k_base"},
	{"o3", "o200k_base"},
	{"o3-*", "o200k_base"},
	{"o4-mini", "o200k_base"},
	{"o4-mini-*", "o200k_base"},
	{"gpt-4.5", "o200k_base"},
	{"gpt-4.5-*", "o200k_base"},
	{"gpt-4.1", "o200k_base"},
	{"gpt-4.1-*", "o200k_base"},
	{"gpt-4o", "o200k_base"},
	{"gpt-4o-*", "o200k_base"},
	{"chatgpt-4o-*", "o200k_base"},
	{"gpt-oss-*", "o200k_harmony"},
	{"gpt-4", "cl100k_base"},
	{"gpt-4-*", "cl100k_base"},
	{"gpt-3.5", "cl100k_base"},
	{"gpt-3.5-turbo", "cl100k_base"},
	{"gpt-3.5-turbo-*", "cl100k_base"},
	{"gpt-35-turbo", "cl100k_base"},
	{"gpt-35-turbo-*", "cl100k_base"},
	{"ft:gpt-4o*", "o200k_base"},
	{"ft:gpt-4*", "cl100k_base"},
	{"ft:gpt-3.5-turbo*", "cl100k_base"},
	{"ft:davinci-002*", "cl100k_base"},
	{"ft:babbage-002*", "cl100k_base"},
	{"davinci-002", "cl100k_base"},
	{"babbage-002", "cl100k_base"},
	{"text-embedding-ada-002", "cl100k_base"},
	{"text-embedding-3-large", "cl100k_base"},
	{"text-embedding-3-small", "cl100k_base"},
	{"text-davinci-003", "p50k_base"},
	{"text-davinci-002", "p50k_base"},
	{"text-davinci-001", "r50k_base"},
	{"text-curie-001", "r50k_base"},
	{"text-babbage-001", "r50k_base"},
	{"text-ada-001", "r50k_base"},
	{"davinci", "r50k_base"},
	{"curie", "r50k_base"},
	{"babbage", "r50k_base"},
	{"ada", "r50k_base"},
	{"code-davinci-002", "p50k_base"},
	{"code-davinci-001", "p50k_base"},
	{"code-cushman-002", "p50k_base"},
	{"code-cushman-001", "p50k_base"},
	{"davinci-codex", "p50k_base"},
	{"cushman-codex", "p50k_base"},
	{"text-davinci-edit-001", "p50k_edit"},
	{"code-davinci-edit-001", "p50k_edit"},
	{"text-similarity-davinci-001", "r50k_base"},
	{"text-similarity-curie-001", "r50k_base"},
	{"text-similarity-babbage-001", "r50k_base"},
	{"text-similarity-ada-001", "r50k_base"},
	{"text-search-davinci-doc-001", "r50k_base"},
	{"text-search-curie-doc-001", "r50k_base"},
	{"text-search-babbage-doc-001", "r50k_base"},
	{"text-search-ada-doc-001", "r50k_base"},
	{"code-search-babbage-code-001", "r50k_base"},
	{"code-search-ada-code-001", "r50k_base"},
	{"gpt-2", "gpt2"},
}

// encodings returns the encoding names that NewCounter knows, sorted.
func encodings() []string {
	names := make([]string, 0, len(encodingNames))
	for _, e := range encodingNames {
		names = append(names, e.name)
	}
	slices.Sort(names)
	return names
}

// models returns the model names that NewCounter knows, sorted. A name that
// ends in "*" stands for every model that starts with what precedes it.
func models() []string {
	names := make([]string, 0, len(modelNames))
	for _, m := range modelNames {
		names = append(names, m.pattern)
	}
	slices.Sort(names)
	return names
}

// resolve returns the encoding that name stands for, itself or as a model, and
// the vocabulary that counts it.
func resolve(name string) (encodingName, error) {
	wanted, longest := name, -1
	for _, m := range modelNames {
		prefix, open := strings.CutSuffix(m.pattern, "*")
		switch {
		case m.pattern == name:
			wanted, longest = m.encoding, len(name)+1
		case open && strings.HasPrefix(name, prefix) && len(prefix) > longest:
			wanted, longest = m.encoding, len(prefix)
		}
	}
	for _, e := range encodingNames {
		if e.name == wanted {
			return e, nil
		}
	}
	return encodingName{}, fmt.Errorf("unknown encoding or model %q: use one of the encodings %s, or one of the models %s",
		name, strings.Join(encodings(), ", "), strings.Join(models(), ", "))
}
