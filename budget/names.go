package budget

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pkoukk/tiktoken-go"

	"github.com/foldgate/foldgate/budget/bpe"
)

// tokenizers maps each encoding to the tokenizer that counts it. Several encodings are the same
// for ordinary text: p50k_edit and o200k_harmony differ from their base only in special tokens,
// which are ordinary text here, and gpt2 is r50k_base in another file format.
var tokenizers = map[string]*bpe.Tokenizer{
	"cl100k_base":   bpe.CL100kBase,
	"gpt2":          bpe.R50kBase,
	"o200k_base":    bpe.O200kBase,
	"o200k_harmony": bpe.O200kBase,
	"p50k_base":     bpe.P50kBase,
	"p50k_edit":     bpe.P50kBase,
	"r50k_base":     bpe.R50kBase,
}

// moreModels lists the models of OpenAI's tiktoken (tiktoken/model.py) that the tables of
// tiktoken-go lack. "*" at the end of a name stands for any text.
var moreModels = map[string][]string{
	"o200k_base": {
		"gpt-5", "gpt-5-*", "gpt-5.*", "o1", "o1-*", "o3", "o3-*", "o4-mini", "o4-mini-*", "chatgpt-4o-*", "ft:gpt-4o*",
	},
	"o200k_harmony": {"gpt-oss-*"},
	"cl100k_base": {
		"gpt-3.5", "gpt-35-turbo", "gpt-35-turbo-*", "davinci-002", "babbage-002",
		"ft:gpt-4*", "ft:gpt-3.5-turbo*", "ft:davinci-002*", "ft:babbage-002*",
	},
	"gpt2": {"gpt-2"},
}

// models returns the encoding of each model. "*" at the end of a name stands for any text.
var models = sync.OnceValue(func() map[string]string {
	all := maps.Clone(tiktoken.MODEL_TO_ENCODING)
	for prefix, encoding := range tiktoken.MODEL_PREFIX_TO_ENCODING {
		all[prefix+"*"] = encoding
	}
	for encoding, names := range moreModels {
		for _, name := range names {
			all[name] = encoding
		}
	}
	return all
})

// resolve returns the encoding of a name: the encoding of that name, or the encoding of a model.
// An exact name has precedence over a prefix, and a longer prefix over a shorter one.
func resolve(name string) (encoding string, err error) {
	if _, known := tokenizers[name]; known {
		return name, nil
	}
	longest := ""
	for model, its := range models() {
		prefix, open := strings.CutSuffix(model, "*")
		switch {
		case model == name && !open:
			return its, nil
		case open && strings.HasPrefix(name, prefix) && len(model) > len(longest):
			encoding, longest = its, model
		}
	}
	if longest == "" {
		return "", fmt.Errorf("unknown encoding or model %q: use one of the encodings %s, or the name of an OpenAI model, such as gpt-4o",
			name, strings.Join(slices.Sorted(maps.Keys(tokenizers)), ", "))
	}
	return encoding, nil
}
