package budget

import (
	"fmt"
	"sync"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

// A vocabulary counts with the tables of one encoding.
type vocabulary struct {
	bpe *tiktoken.Tiktoken
}

var (
	vocabularies sync.Map // name to *vocabulary
	setLoader    = sync.OnceFunc(func() { tiktoken.SetBpeLoader(loader.NewOfflineLoader()) })
)

func loadVocabulary(name string) (*vocabulary, error) {
	if v, ok := vocabularies.Load(name); ok {
		return v.(*vocabulary), nil
	}
	setLoader()
	bpe, err := tiktoken.GetEncoding(name)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", name, err)
	}
	v, _ := vocabularies.LoadOrStore(name, &vocabulary{bpe})
	return v.(*vocabulary), nil
}

func (v *vocabulary) count(text string) int {
	return len(v.bpe.EncodeOrdinary(text))
}
