// encryption-config reads EncryptionConfigurations with kube-apiserver's own loader and says what came of
// it: whether the file is accepted, its hash, what is written to etcd for a resource, and what is read back.
//
//	encryption-config version
//	encryption-config read FOLDER [RESOURCE...]
//
// Nothing is written and read back where no resource is named. The answer is one JSON object a line. KMS v2 plugins are played by this program; behind a KMS v1
// provider there is nobody.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kms/pkg/service"
)

// A sentence about one file, under one setting of what an API server's flags say.
type verdict struct {
	File   string `json:"file"`
	Reload bool   `json:"reload"`
	KMSv1  bool   `json:"kmsV1"`
	Hash   string `json:"hash"`
	Error  string `json:"error"`
	// What is stored for each resource; absent where nothing can be written.
	Written map[string][]byte `json:"written,omitempty"`
}

// A sentence about reading, through one file's transformers, what another's wrote for the same resource.
type reading struct {
	By       string `json:"by"`
	From     string `json:"from"`
	Resource string `json:"resource"`
	Readable bool   `json:"readable"`
	Stale    bool   `json:"stale"`
}

const plaintext = `{"kind":"Secret"}`

var at = value.DefaultContext("/registry/example")

func main() {
	klog.SetOutput(io.Discard)
	flags := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(flags)
	_ = flags.Set("logtostderr", "false")
	_ = flags.Set("stderrthreshold", "FATAL")

	args := os.Args[1:]
	switch {
	case len(args) == 1 && args[0] == "version":
		fmt.Println("encryption-config", version())
	case len(args) >= 2 && args[0] == "read":
		if err := read(args[1], args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: encryption-config version | read FOLDER [RESOURCE...]")
		os.Exit(2)
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "k8s.io/apiserver" {
				return module.Version
			}
		}
	}
	return "unknown"
}

func read(folder string, resources []string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	encryptionconfig.EnvelopeKMSv2ServiceFactory = func(context.Context, string, string, time.Duration) (service.Service, error) {
		return plugin{}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := json.NewEncoder(os.Stdout)

	loaded := map[string]encryptionconfig.StaticTransformers{}
	written := map[string]map[string][]byte{}
	for _, kmsV1 := range []bool{false, true} {
		if err := utilfeature.DefaultMutableFeatureGate.Set(fmt.Sprintf("KMSv1=%v", kmsV1)); err != nil {
			return err
		}
		for _, reload := range []bool{false, true} {
			verdicts := make([]verdict, len(files))
			transformers := make([]encryptionconfig.StaticTransformers, len(files))
			var all sync.WaitGroup
			turns := make(chan struct{}, 64)
			for i, file := range files {
				all.Add(1)
				turns <- struct{}{}
				go func() {
					defer func() { <-turns; all.Done() }()
					path := filepath.Join(folder, file.Name())
					v := verdict{File: file.Name(), Reload: reload, KMSv1: kmsV1}
					v.Hash, _ = encryptionconfig.GetEncryptionConfigHash(path)
					config, err := encryptionconfig.LoadEncryptionConfig(ctx, path, reload, "")
					if err != nil {
						v.Error = err.Error()
					} else if kmsV1 && !reload && len(resources) > 0 {
						transformers[i] = config.Transformers
						v.Written = write(ctx, transformers[i], resources)
					}
					verdicts[i] = v
				}()
			}
			all.Wait()
			for i, v := range verdicts {
				if err := out.Encode(v); err != nil {
					return err
				}
				if transformers[i] != nil {
					loaded[v.File], written[v.File] = transformers[i], v.Written
				}
			}
		}
	}
	return readBack(ctx, out, loaded, written)
}

func write(ctx context.Context, transformers encryptionconfig.StaticTransformers, resources []string) map[string][]byte {
	written := map[string][]byte{}
	for _, resource := range resources {
		transformer := transformers.TransformerForResource(schema.ParseGroupResource(resource))
		if stored, err := transformer.TransformToStorage(ctx, []byte(plaintext), at); err == nil {
			written[resource] = stored
		}
	}
	return written
}

func readBack(ctx context.Context, out *json.Encoder, loaded map[string]encryptionconfig.StaticTransformers, written map[string]map[string][]byte) error {
	for by, transformers := range loaded {
		for from, values := range written {
			for resource, stored := range values {
				transformer := transformers.TransformerForResource(schema.ParseGroupResource(resource))
				clear, stale, err := transformer.TransformFromStorage(ctx, stored, at)
				r := reading{By: by, From: from, Resource: resource, Readable: err == nil && string(clear) == plaintext, Stale: stale}
				if err := out.Encode(r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// plugin is a KMS v2 plugin that protects nothing and never fails.
type plugin struct{}

func (plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	return &service.EncryptResponse{Ciphertext: data, KeyID: "1"}, nil
}

func (plugin) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	return req.Ciphertext, nil
}

func (plugin) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "1"}, nil
}
