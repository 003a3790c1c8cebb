package auth

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/foldgate/foldgate/internal/atomicfile"
	"github.com/foldgate/foldgate/internal/filelock"
	"github.com/foldgate/foldgate/proxy/config"
)

// store keeps the logins of persons on disk, one file each, encrypted. All processes on a state
// directory share it.
type store struct {
	dir, keyFile string
	given        bool // keyFile is named in the configuration
	key          config.Secret
}

// saved is one login as it is stored.
type saved struct {
	token
	ID string `json:"id,omitempty"` // unique to this login
	// What the token was asked for with. It goes to no other upstream and to no other server.
	URL      string   `json:"url"` // of the upstream
	Resource string   `json:"resource"`
	Issuer   string   `json:"issuer"`
	Endpoint string   `json:"endpoint"` // of tokens
	ClientID string   `json:"client_id"`
	Secret   string   `json:"client_secret,omitempty"`
	Methods  []string `json:"methods,omitempty"` // of the endpoint, to authenticate a client
}

// fileOf returns the name of a login's file. principal is "" if all share it. An upstream's key has no @.
func fileOf(upstream, principal string) string {
	who := "shared"
	if principal != "" {
		who = fmt.Sprintf("%x", sha256.Sum256([]byte(principal)))
	}
	return upstream + "@" + who
}

const sealVersion = 1

// ready returns why no login could be stored.
func (s *store) ready() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	_, err := s.cipher(true)
	return err
}

// lock makes this process the only one that changes a login.
func (s *store) lock(ctx context.Context, file string) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	return filelock.Wait(ctx, filepath.Join(s.dir, file+".lock"))
}

// stat returns nil if there is no login.
func (s *store) stat(file string) (os.FileInfo, error) {
	info, err := os.Stat(filepath.Join(s.dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return info, err
}

func (s *store) read(file string) (*saved, error) {
	sealed, err := os.ReadFile(filepath.Join(s.dir, file))
	if err != nil {
		return nil, err
	}
	aead, err := s.cipher(false)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(sealed) < 1+n || sealed[0] != sealVersion {
		return nil, fmt.Errorf("%s is not a login that this version of foldgate has stored", file)
	}
	plain, err := aead.Open(nil, sealed[1:1+n], sealed[1+n:], []byte(file))
	if err != nil {
		return nil, errors.New("the stored login does not open with the key of the configuration (logins): give the key with which it was stored, or log in again")
	}
	g := &saved{}
	return g, json.Unmarshal(plain, g)
}

// write replaces a login in one step. The caller has the lock.
func (s *store) write(file string, g *saved) error {
	plain, err := json.Marshal(g)
	if err != nil {
		return err
	}
	aead, err := s.cipher(true)
	if err != nil {
		return err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	sealed := aead.Seal(append([]byte{sealVersion}, nonce...), nonce, plain, []byte(file))
	return atomicfile.Write(filepath.Join(s.dir, file), sealed, 0o600)
}

// remove returns false if there was no login.
func (s *store) remove(file string) (bool, error) {
	err := os.Remove(filepath.Join(s.dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// cipher returns the cipher of the store. If no key is configured and there is none yet, create makes it.
// A key file that is configured is never made: it may be on a volume that is not mounted.
func (s *store) cipher(create bool) (cipher.AEAD, error) {
	key := string(s.key)
	if key == "" {
		text, err := os.ReadFile(s.keyFile)
		if errors.Is(err, fs.ErrNotExist) && create && !s.given {
			if err = atomicfile.Write(s.keyFile+".made", []byte(rand.Text()+rand.Text()), 0o600); err == nil {
				_ = os.Link(s.keyFile+".made", s.keyFile) // another process may have been faster
				_ = os.Remove(s.keyFile + ".made")
				text, err = os.ReadFile(s.keyFile)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the key of the logins (logins.key_file): %w: restore the file, or make one by `openssl rand -hex 32` and log in again", err)
		}
		if key = strings.TrimSpace(string(text)); len(key) < 32 {
			return nil, fmt.Errorf("the key of the logins, %s, has %d characters, fewer than 32; `openssl rand -hex 32` makes a good one", s.keyFile, len(key))
		}
	}
	derived, err := hkdf.Key(sha256.New, []byte(key), nil, "foldgate logins", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
