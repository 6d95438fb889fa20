// kms-v1 is a KMS v1 plugin, of the kind that kube-apiserver serves behind its feature gate KMSv1 only: AES-256-GCM with a key
// that ends with the process. It is there so that the lab has values of such a plugin.
package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	kms "k8s.io/kms/apis/v1beta1"
)

type plugin struct {
	kms.UnsafeKeyManagementServiceServer
	aead cipher.AEAD
}

func main() {
	socket := flag.String("listen", "", "path of the socket")
	flag.Parse()
	if err := serve(*socket); err != nil {
		fmt.Fprintln(os.Stderr, "kms-v1:", err)
		os.Exit(1)
	}
}

func serve(socket string) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	kms.RegisterKeyManagementServiceServer(server, &plugin{aead: aead})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		server.Stop()
	}()
	return server.Serve(listener)
}

func (p *plugin) Version(context.Context, *kms.VersionRequest) (*kms.VersionResponse, error) {
	return &kms.VersionResponse{Version: "v1beta1", RuntimeName: "kms-v1", RuntimeVersion: "1"}, nil
}

func (p *plugin) Encrypt(_ context.Context, request *kms.EncryptRequest) (*kms.EncryptResponse, error) {
	nonce := make([]byte, p.aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return &kms.EncryptResponse{Cipher: p.aead.Seal(nonce, nonce, request.Plain, nil)}, nil
}

func (p *plugin) Decrypt(_ context.Context, request *kms.DecryptRequest) (*kms.DecryptResponse, error) {
	size := p.aead.NonceSize()
	if len(request.Cipher) < size {
		return nil, errors.New("too short")
	}
	plain, err := p.aead.Open(nil, request.Cipher[:size], request.Cipher[size:], nil)
	if err != nil {
		return nil, err
	}
	return &kms.DecryptResponse{Plain: plain}, nil
}
