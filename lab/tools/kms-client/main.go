// kms-client calls a KMS v2 plugin through kube-apiserver's own client and prints what came back, as JSON.
//
// It is built against two generations of that client: kms-client-31 and kms-client-37 hold a go.mod each.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	"k8s.io/kms/pkg/service"
)

const usage = `kms-client: a KMS v2 plugin called by kube-apiserver's own client

  kms-client calls --endpoint unix:///PATH [--count N] [--concurrency C] [--mix status,encrypt,decrypt]
                   [--distinct-deadlines] [--timeout 3s] [--warm-up N] [--until-end-of-input]
      N calls on one connection, C in flight, the methods of the mix in turn. What is decrypted was encrypted
      before the count begins, and each plaintext is compared. A call begins when one before it has come back: this
      is a closed loop, whose latencies leave out the wait that an open one would add. Ends with 1 if a call failed.
      With --until-end-of-input the calls go on until standard input ends, and N does not count.
  kms-client starts --endpoint unix:///PATH [--count N] -- PROGRAM [ARGUMENT...]
      Starts a plugin N times, one after another, and takes the time from before it is a process until its first
      Status says ok, this client's connecting included.
  kms-client version
      The version of k8s.io/apiserver that the client is from.
`

// How many different ciphertexts decrypts choose from.
const samples = 32

// What --mix may name; elsewhere a method is its index here.
var methods = []string{"status", "encrypt", "decrypt"}

type options struct {
	endpoint    string
	count       int
	concurrency int
	warmUp      int
	timeout     time.Duration
	distinct    bool
	untilEnd    bool
	mix         []int
}

// A plaintext and what became of it.
type sample struct {
	plaintext []byte
	encrypted *service.EncryptResponse
}

// What one call came to; each call has its own slot, so that nothing is shared while time is taken.
type outcome struct {
	method int
	took   time.Duration
	err    error
}

type latencies struct {
	Calls int     `json:"calls"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
}

type failures struct {
	Count int    `json:"count"`
	First string `json:"first"`
}

type report struct {
	Client      string               `json:"client"`
	Count       int                  `json:"count"`
	Succeeded   int                  `json:"succeeded"`
	Failed      int                  `json:"failed"`
	Concurrency int                  `json:"concurrency"`
	WallSeconds float64              `json:"wall_s"`
	PerSecond   float64              `json:"calls_per_s"`
	Errors      map[string]failures  `json:"errors"`
	Methods     map[string]latencies `json:"methods"`
	// What a plugin adds to each DEK source: the sizes of one sample, if there was anything to decrypt.
	Ciphertext  int `json:"ciphertext_bytes,omitempty"`
	Annotations int `json:"annotation_bytes,omitempty"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(clientVersion())
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "starts" {
		if err := starts(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "kms-client: %v\n", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) < 2 || os.Args[1] != "calls" {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	o, err := parse(os.Args[2:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "kms-client: %v\n\n%s", err, usage)
		os.Exit(2)
	}
	r, err := run(o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "kms-client: %v\n", err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	if err := out.Encode(r); err != nil || r.Failed > 0 {
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{}
	var mix string
	flags := flag.NewFlagSet("calls", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	flags.StringVar(&o.endpoint, "endpoint", "", "unix:///PATH, or unix:///@NAME")
	flags.IntVar(&o.count, "count", 1000, "how many calls")
	flags.IntVar(&o.concurrency, "concurrency", 1, "how many at once")
	flags.IntVar(&o.warmUp, "warm-up", 0, "how many calls before those that count")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Second, "of each call")
	flags.BoolVar(&o.distinct, "distinct-deadlines", false, "another deadline for each call: up to a third less than the timeout")
	flags.BoolVar(&o.untilEnd, "until-end-of-input", false, "calls go on until standard input ends")
	flags.StringVar(&mix, "mix", "status,encrypt,decrypt", "methods, in turn")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, word := range strings.Split(mix, ",") {
		method := slices.Index(methods, word)
		if method < 0 {
			return nil, fmt.Errorf("--mix: %q is none of %s", word, strings.Join(methods, ", "))
		}
		o.mix = append(o.mix, method)
	}
	switch {
	case o.endpoint == "":
		return nil, fmt.Errorf("--endpoint is missing")
	case flags.NArg() > 0:
		return nil, fmt.Errorf("what is %q?", flags.Arg(0))
	case o.count < 1 || o.concurrency < 1 || o.warmUp < 0 || o.timeout <= 0:
		return nil, fmt.Errorf("--count, --concurrency and --timeout must be positive, --warm-up not negative")
	}
	return o, nil
}

func run(o *options) (*report, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := kmsv2.NewGRPCService(ctx, o.endpoint, "kms-client", o.timeout)
	if err != nil {
		return nil, err
	}
	var prepared []sample
	if slices.Contains(o.mix, slices.Index(methods, "decrypt")) {
		if prepared, err = prepare(ctx, client); err != nil {
			return nil, fmt.Errorf("nothing to decrypt: %w", err)
		}
	}
	r := &runner{options: o, client: client, samples: prepared, plaintext: random(32)}
	r.calls(ctx, make([]outcome, o.warmUp))

	started := time.Now()
	var outcomes []outcome
	if o.untilEnd {
		outcomes = r.callsUntil(ctx, endOfInput())
	} else {
		outcomes = make([]outcome, o.count)
		r.calls(ctx, outcomes)
	}
	return r.report(outcomes, time.Since(started)), nil
}

// True once there is nothing more to read.
func endOfInput() *atomic.Bool {
	over := &atomic.Bool{}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	return over
}

func prepare(ctx context.Context, client service.Service) ([]sample, error) {
	prepared := make([]sample, samples)
	for i := range prepared {
		plaintext := random(32)
		encrypted, err := client.Encrypt(ctx, fmt.Sprintf("prepare-%d", i), plaintext)
		if err != nil {
			return nil, err
		}
		prepared[i] = sample{plaintext, encrypted}
	}
	return prepared, nil
}

type runner struct {
	*options
	client    service.Service
	samples   []sample
	plaintext []byte
}

// As many goroutines as calls may be in flight; each takes the next call when its last one has come back.
func (r *runner) calls(ctx context.Context, outcomes []outcome) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(r.concurrency, len(outcomes)) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(outcomes) {
					return
				}
				outcomes[i] = r.call(ctx, i)
			}
		}()
	}
	workers.Wait()
}

// The same until it is over; each goroutine keeps its own outcomes.
func (r *runner) callsUntil(ctx context.Context, over *atomic.Bool) []outcome {
	var next atomic.Int64
	var workers sync.WaitGroup
	each := make([][]outcome, r.concurrency)
	for worker := range each {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for !over.Load() {
				each[worker] = append(each[worker], r.call(ctx, int(next.Add(1))-1))
			}
		}()
	}
	workers.Wait()
	return slices.Concat(each...)
}

func (r *runner) call(ctx context.Context, i int) outcome {
	method := r.method(i)
	took, err := r.try(ctx, i, method)
	return outcome{method, took, err}
}

func (r *runner) try(ctx context.Context, i, method int) (time.Duration, error) {
	if r.distinct {
		// Steps that the wire shows: from 0.1 s up, grpc-timeout counts microseconds.
		steps := int(r.timeout / (3 * 20 * time.Microsecond))
		less := time.Duration(i%max(steps, 1)) * 20 * time.Microsecond
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout-less)
		defer cancel()
	}
	uid := fmt.Sprintf("call-%d", i)
	started := time.Now()
	switch methods[method] {
	case "status":
		answer, err := r.client.Status(ctx)
		took := time.Since(started)
		if err == nil && answer.Healthz != "ok" {
			err = fmt.Errorf("healthz is %q", answer.Healthz)
		}
		return took, err
	case "encrypt":
		answer, err := r.client.Encrypt(ctx, uid, r.plaintext)
		took := time.Since(started)
		if err == nil && (len(answer.Ciphertext) == 0 || answer.KeyID == "") {
			err = fmt.Errorf("nothing encrypted")
		}
		return took, err
	default:
		s := r.samples[i%len(r.samples)]
		plaintext, err := r.client.Decrypt(ctx, uid, &service.DecryptRequest{
			Ciphertext:  s.encrypted.Ciphertext,
			KeyID:       s.encrypted.KeyID,
			Annotations: s.encrypted.Annotations,
		})
		took := time.Since(started)
		if err == nil && !bytes.Equal(plaintext, s.plaintext) {
			err = fmt.Errorf("not the plaintext that was encrypted")
		}
		return took, err
	}
}

func (r *runner) method(i int) int {
	return r.mix[i%len(r.mix)]
}

func (r *runner) report(outcomes []outcome, wall time.Duration) *report {
	took := make([][]time.Duration, len(methods))
	result := &report{
		Client:      clientVersion(),
		Count:       len(outcomes),
		Concurrency: r.concurrency,
		WallSeconds: wall.Seconds(),
		PerSecond:   float64(len(outcomes)) / wall.Seconds(),
		Errors:      map[string]failures{},
		Methods:     map[string]latencies{},
	}
	if len(r.samples) > 0 {
		result.Ciphertext = len(r.samples[0].encrypted.Ciphertext)
		for _, value := range r.samples[0].encrypted.Annotations {
			result.Annotations += len(value)
		}
	}
	for _, o := range outcomes {
		if o.err == nil {
			took[o.method] = append(took[o.method], o.took)
			result.Succeeded++
			continue
		}
		result.Failed++
		// What is no gRPC status (a wrong plaintext) is "Unknown".
		code := status.Code(o.err).String()
		seen := result.Errors[code]
		if seen.Count++; seen.Count == 1 {
			seen.First = methods[o.method] + ": " + o.err.Error()
		}
		result.Errors[code] = seen
	}
	for method, all := range took {
		if len(all) > 0 {
			slices.Sort(all)
			result.Methods[methods[method]] = latencies{
				Calls: len(all),
				P50:   microseconds(all[rank(len(all), 50)]),
				P99:   microseconds(all[rank(len(all), 99)]),
				Max:   microseconds(all[len(all)-1]),
			}
		}
	}
	return result
}

// The smallest index that has so many percent of the values at or below it.
func rank(count, percent int) int {
	return (count*percent+99)/100 - 1
}

func microseconds(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000
}

func random(length int) []byte {
	b := make([]byte, length)
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
	return b
}

func starts(args []string) error {
	flags := flag.NewFlagSet("starts", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "unix:///PATH")
	count := flags.Int("count", 20, "how many starts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	path, ok := strings.CutPrefix(*endpoint, "unix://")
	if !ok || flags.NArg() == 0 || *count < 1 {
		return fmt.Errorf("starts needs --endpoint unix:///PATH, a positive --count, and a program")
	}
	// The programs are told when this thread ends, which must be when we do.
	runtime.LockOSThread()
	took := make([]time.Duration, *count)
	for i := range took {
		var err error
		if took[i], err = start(*endpoint, path, flags.Args()); err != nil {
			return fmt.Errorf("start %d: %w", i+1, err)
		}
	}
	slices.Sort(took)
	out := json.NewEncoder(os.Stdout)
	return out.Encode(map[string]any{
		"count":  *count,
		"p50_ms": microseconds(took[rank(*count, 50)]) / 1000,
		"min_ms": microseconds(took[0]) / 1000,
		"max_ms": microseconds(took[*count-1]) / 1000,
	})
}

// One start of a program, which is ended again.
func start(endpoint, path string, command []string) (time.Duration, error) {
	const within = 10 * time.Second

	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	program := exec.CommandContext(ctx, command[0], command[1:]...)
	var said bytes.Buffer
	program.Stderr = &said
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := time.Now()
	if err := program.Start(); err != nil {
		return 0, err
	}
	err := answersAt(ctx, endpoint, path)
	took := time.Since(started)
	if err != nil {
		_ = program.Process.Kill()
	} else {
		err = program.Process.Signal(syscall.SIGTERM)
	}
	if err = errors.Join(err, program.Wait()); err != nil {
		err = fmt.Errorf("%w; it said:\n%s", err, said.String())
	}
	return took, err
}

func answersAt(ctx context.Context, endpoint, path string) error {
	// A gRPC client that finds nobody rests for a second: it is made when somebody listens.
	for {
		connection, err := net.Dial("unix", path)
		if err == nil {
			connection.Close()
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nobody listens: %w", err)
		case <-time.After(100 * time.Microsecond):
		}
	}
	client, err := kmsv2.NewGRPCService(ctx, endpoint, "kms-client", 3*time.Second)
	if err != nil {
		return err
	}
	for {
		answer, err := client.Status(ctx)
		if err == nil && answer.Healthz == "ok" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("never ok: %v, %v", answer, err)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

func clientVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "k8s.io/apiserver" {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "unknown"
}
