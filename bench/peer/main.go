// kms-peer is what casemate-kms is measured against: a KMS v2 plugin as one writes it in Go, on k8s.io/kms.
//
// It does the same work for the caller, on a root key in a file: a local KEK, wrapped once, whose record travels with
// each ciphertext; for each call HMAC-SHA256 for a one-time key and AES-256-GCM; for each Decrypt the record is
// parsed, checked to be canonical, and its key id derived and compared, before the local KEK is looked up. What a
// plugin needs besides (a watched key file, rotation, metrics, limits, audit, confinement) it does not have. The names of
// its annotation and its key ids are of its own, so that nobody takes what it writes for that of casemate-kms.
package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/kms/pkg/service"
)

const (
	domain     = "casemate.dev/v1/"
	annotation = "record.peer.example"
	suite      = 1
	fileGCM    = 1 // the root key's algorithm
	headerLen  = 1 + 32
	overhead   = headerLen + 12 + 16
	cacheSize  = 4096
)

func main() {
	socket := flag.String("listen", "", "path of the socket")
	keyFile := flag.String("key-file", "", "32 bytes of root key in hex; made if it is not there")
	cluster := flag.String("cluster-id", "bench", "")
	flag.Parse()
	if err := serve(*socket, *keyFile, *cluster); err != nil {
		fmt.Fprintln(os.Stderr, "kms-peer:", err)
		os.Exit(1)
	}
}

func serve(socket, keyFile, cluster string) error {
	root, err := rootKey(keyFile)
	if err != nil {
		return err
	}
	p, err := newPlugin(root, cluster)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	server := service.NewGRPCService(socket, 10*time.Second, p)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		server.Shutdown()
	}()
	return server.ListenAndServe()
}

func rootKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(hex.EncodeToString(random(32)))
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err == nil && len(key) != 32 {
		err = fmt.Errorf("%s has %d bytes; 32 are needed", path, len(key))
	}
	return key, err
}

type plugin struct {
	cluster string
	root    []byte
	lineage string
	keyID   string

	// What writes: the encoded record, its digest, and the local KEK.
	record []byte
	digest [32]byte
	kek    []byte

	lock   sync.Mutex
	opened map[[32]byte][]byte
}

func newPlugin(root []byte, cluster string) (*plugin, error) {
	check, id := kdf(root, "root-id"), sha256.Sum256(root)
	p := &plugin{
		cluster: cluster,
		root:    root,
		lineage: fmt.Sprintf("file:%x/1/%x", id[:16], check[:8]),
		kek:     random(32),
		opened:  map[[32]byte][]byte{},
	}
	c := core{
		suite:   suite,
		cluster: cluster,
		roots:   []rootRef{{p.lineage, fileGCM}},
		kekID:   kdf(p.kek, "kek-id"),
		created: uint64(time.Now().Unix()),
		writer:  "kms-peer/0.1.0",
	}
	p.keyID = c.keyID()
	encoded := c.encode()
	d := sha256.Sum256(encoded)
	wrap, err := seal(kdf(root, "file-wrap"), append(bytes.Clone(p.kek), d[:]...), wrapAAD(d))
	if err != nil {
		return nil, err
	}
	p.record = (&record{core: encoded, wraps: [][]byte{wrap}}).encode()
	p.digest = sha256.Sum256(p.record)
	if _, err := p.unwrap(p.record); err != nil {
		return nil, err
	}
	p.opened[p.digest] = p.kek
	return p, nil
}

func (p *plugin) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: p.keyID}, nil
}

func (p *plugin) Encrypt(_ context.Context, _ string, plaintext []byte) (*service.EncryptResponse, error) {
	if len(plaintext) < 16 || len(plaintext) > 512 {
		return nil, fmt.Errorf("a DEK source has 16 to 512 bytes, found %d", len(plaintext))
	}
	out := make([]byte, headerLen, len(plaintext)+overhead)
	out[0] = suite
	if _, err := rand.Read(out[1:]); err != nil {
		return nil, err
	}
	sealed, err := seal(kdf(p.kek, "seal", p.digest[:], out[1:]), plaintext, nil)
	if err != nil {
		return nil, err
	}
	return &service.EncryptResponse{
		Ciphertext:  append(out, sealed...),
		KeyID:       p.keyID,
		Annotations: map[string][]byte{annotation: p.record},
	}, nil
}

func (p *plugin) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	value, ok := req.Annotations[annotation]
	if !ok || len(req.Annotations) != 1 {
		return nil, fmt.Errorf("exactly one annotation is accepted, %s", annotation)
	}
	_, c, err := decodeRecord(value)
	if err != nil {
		return nil, err
	}
	if c.cluster != p.cluster {
		return nil, fmt.Errorf("cluster %q, ours is %q", c.cluster, p.cluster)
	}
	if derived := c.keyID(); derived != req.KeyID {
		return nil, fmt.Errorf("the record is of key id %s, the request of %q", derived, req.KeyID)
	}
	if !c.has(p.lineage) {
		return nil, errors.New("no root key of the record is known here")
	}
	if n := len(req.Ciphertext) - overhead; n < 16 || n > 512 || req.Ciphertext[0] != suite {
		return nil, errors.New("no ciphertext of this record's suite")
	}
	digest := sha256.Sum256(value)
	kek, err := p.opening(digest, value)
	if err != nil {
		return nil, err
	}
	header, sealed := req.Ciphertext[:headerLen], req.Ciphertext[headerLen:]
	return open(kdf(kek, "seal", digest[:], header[1:]), sealed, nil)
}

// The local KEK of a record, from memory if it was opened before.
func (p *plugin) opening(digest [32]byte, value []byte) ([]byte, error) {
	p.lock.Lock()
	kek, ok := p.opened[digest]
	p.lock.Unlock()
	if ok {
		return kek, nil
	}
	kek, err := p.unwrap(value)
	if err != nil {
		return nil, err
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	if len(p.opened) < cacheSize {
		p.opened[digest] = kek
	}
	return kek, nil
}

func (p *plugin) unwrap(value []byte) ([]byte, error) {
	r, c, err := decodeRecord(value)
	if err != nil {
		return nil, err
	}
	d := sha256.Sum256(r.core)
	for i, root := range c.roots {
		if root.lineage != p.lineage {
			continue
		}
		payload, err := open(kdf(p.root, "file-wrap"), r.wraps[i], wrapAAD(d))
		if err != nil || len(payload) != 64 || !hmac.Equal(payload[32:], d[:]) {
			break
		}
		if kek := payload[:32]; hmac.Equal(kdf(kek, "kek-id"), c.kekID) {
			return kek, nil
		}
	}
	return nil, errors.New("the root key did not open the record")
}

// The record: {1 core, 2 repeated wrap}; other fields are refused here.
type record struct {
	core  []byte
	wraps [][]byte
}

// Its core: {1 suite, 2 cluster id, 3 epoch, 4 repeated {1 lineage, 2 algorithm}, 6 KEK id, 7 created, 8 writer}.
type core struct {
	suite   uint64
	cluster string
	epoch   uint64
	roots   []rootRef
	kekID   []byte
	created uint64
	writer  string
}

type rootRef struct {
	lineage   string
	algorithm uint64
}

func (r *record) encode() []byte {
	out := appendBytes(make([]byte, 0, 512), 1, r.core)
	for _, wrap := range r.wraps {
		out = appendBytes(out, 2, wrap)
	}
	return out
}

func (c *core) encode() []byte {
	out := appendNumber(make([]byte, 0, 256), 1, c.suite)
	out = appendBytes(out, 2, []byte(c.cluster))
	out = appendNumber(out, 3, c.epoch)
	for _, root := range c.roots {
		inner := appendNumber(appendBytes(make([]byte, 0, 96), 1, []byte(root.lineage)), 2, root.algorithm)
		out = protowire.AppendBytes(protowire.AppendTag(out, 4, protowire.BytesType), inner)
	}
	out = appendBytes(out, 6, c.kekID)
	out = appendNumber(out, 7, c.created)
	return appendBytes(out, 8, []byte(c.writer))
}

// Decodes, and encodes what it understood once more: any difference is refused.
func decodeRecord(value []byte) (*record, *core, error) {
	if len(value) > 8192 {
		return nil, nil, errors.New("a record has at most 8192 bytes")
	}
	r, c := &record{}, &core{}
	err := fields(value, func(number protowire.Number, _ uint64, content []byte) {
		switch number {
		case 1:
			r.core = content
		case 2:
			r.wraps = append(r.wraps, content)
		}
	})
	if err == nil {
		err = fields(r.core, c.field)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case !bytes.Equal(c.encode(), r.core) || !bytes.Equal(r.encode(), value):
		return nil, nil, errors.New("the record is not canonical")
	case c.suite != suite || len(c.roots) == 0 || len(c.roots) > 4 || len(r.wraps) != len(c.roots) || len(c.kekID) != 32:
		return nil, nil, errors.New("the record is not of version 1")
	}
	return r, c, nil
}

func (c *core) field(number protowire.Number, value uint64, content []byte) {
	switch number {
	case 1:
		c.suite = value
	case 2:
		c.cluster = string(content)
	case 3:
		c.epoch = value
	case 4:
		var root rootRef
		// What is no message becomes an empty one, which is not what stood there.
		_ = fields(content, func(number protowire.Number, value uint64, content []byte) {
			switch number {
			case 1:
				root.lineage = string(content)
			case 2:
				root.algorithm = value
			}
		})
		c.roots = append(c.roots, root)
	case 6:
		c.kekID = content
	case 7:
		c.created = value
	case 8:
		c.writer = string(content)
	}
}

func (c *core) has(lineage string) bool {
	for _, root := range c.roots {
		if root.lineage == lineage {
			return true
		}
	}
	return false
}

func (c *core) keyID() string {
	var roots []byte
	for _, root := range c.roots {
		roots = appendList(roots, appendList(nil, []byte(root.lineage), fmt.Append(nil, root.algorithm)))
	}
	digest := sha256.Sum256(appendList(nil, []byte(domain+"key-id"), fmt.Append(nil, c.suite), []byte(c.cluster),
		fmt.Append(nil, c.epoch), roots, nil, nil))
	return c.cluster + "/" + hex.EncodeToString(digest[:16])
}

// Calls `each` for every field: a number, or the bytes of anything else.
func fields(message []byte, each func(protowire.Number, uint64, []byte)) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(message)
		default:
			return errors.New("the record has a field of an unknown type")
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		each(number, value, content)
	}
	return nil
}

func appendNumber(out []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, number, protowire.VarintType), value)
}

func appendBytes(out []byte, number protowire.Number, content []byte) []byte {
	if len(content) == 0 {
		return out
	}
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), content)
}

func appendList(out []byte, items ...[]byte) []byte {
	for _, item := range items {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(item))), item...)
	}
	return out
}

// SP 800-108 in counter mode, one block of HMAC-SHA256.
func kdf(key []byte, label string, context ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte{0, 0, 0, 1})
	mac.Write([]byte(domain + label))
	mac.Write([]byte{0})
	for _, part := range context {
		mac.Write(part)
	}
	mac.Write([]byte{0, 0, 1, 0})
	return mac.Sum(nil)
}

func wrapAAD(digest [32]byte) []byte {
	return append([]byte(domain+"wrap\x00"), digest[:]...)
}

// nonce(12) ‖ ciphertext ‖ tag(16).
func seal(key, plaintext, aad []byte) ([]byte, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, plaintext, aad), nil
}

func open(key, sealed, aad []byte) ([]byte, error) {
	aead, err := gcm(key)
	if err != nil {
		return nil, err
	}
	return aead.Open(nil, nil, sealed, aad)
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func random(length int) []byte {
	b := make([]byte, length)
	// Never fails: crypto/rand ends the program instead.
	_, _ = rand.Read(b)
	return b
}
