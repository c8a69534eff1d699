package extender

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// binderFunc is a Binder.
type binderFunc func(context.Context, extenderv1.ExtenderBindingArgs) error

func (f binderFunc) Bind(ctx context.Context, args extenderv1.ExtenderBindingArgs) error {
	return f(ctx, args)
}

func TestBindAnswersAsTheSchedulerReads(t *testing.T) {
	whole := extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", PodUID: "uid-p", Node: "n1"}
	var got extenderv1.ExtenderBindingArgs
	var outcome error
	var left time.Duration
	server := httptest.NewServer(NewBind(binderFunc(func(ctx context.Context, args extenderv1.ExtenderBindingArgs) error {
		deadline, _ := ctx.Deadline()
		got, left = args, time.Until(deadline)
		return outcome
	}), slog.New(slog.DiscardHandler)))
	defer server.Close()
	for name, test := range map[string]struct {
		args    any
		outcome error
		code    int
		says    string
	}{
		"bound":              {args: whole, code: http.StatusOK},
		"not bound":          {args: whole, outcome: errors.New("claim c is being deleted"), code: http.StatusOK, says: "claim c is being deleted"},
		"no JSON object":     {args: "x", code: http.StatusBadRequest, says: "body: "},
		"without a node":     {args: extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", PodUID: "u"}, code: http.StatusBadRequest, says: "Node are required"},
		"without a UID":      {args: extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", Node: "n1"}, code: http.StatusBadRequest, says: "PodUID"},
		"more than the most": {args: strings.Repeat("x", maximumBindRequest), code: http.StatusBadRequest, says: "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			got, outcome = extenderv1.ExtenderBindingArgs{}, test.outcome
			var result extenderv1.ExtenderBindingResult
			code, text := ask(t, server.Client(), server.URL+"/bind", test.args, &result)
			if code != test.code || !strings.Contains(text, test.says) || code == http.StatusOK && result.Error != test.says {
				t.Errorf("%d %s", code, text)
			}
			if code == http.StatusOK && (got != whole || left > BindTimeout || left < BindTimeout-time.Minute) {
				t.Errorf("asked for %+v, with %v left", got, left)
			}
		})
	}
}

// served is the key of a value in the context of a server.
type served struct{}

func TestBindingsEndWithTheServer(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan error, 1)
	handler := NewBind(binderFunc(func(ctx context.Context, _ extenderv1.ExtenderBindingArgs) error {
		if ctx.Value(served{}) == nil {
			t.Error("the binding does not end with what serves it")
		}
		close(entered)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}), slog.New(slog.DiscardHandler))
	free := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	address := free.Addr().String()
	must.Succeed(t, free.Close())
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), served{}, true))
	done := make(chan error, 1)
	go func() { done <- ServeBind(ctx, address, handler, slog.New(slog.DiscardHandler)) }()
	waittest.Until(t, "it serves", func() bool {
		connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return false
		}
		return connection.Close() == nil
	})
	go func() {
		var result extenderv1.ExtenderBindingResult
		ask(t, http.DefaultClient, "http://"+address+"/bind", extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", PodUID: "u", Node: "n1"}, &result)
	}()
	<-entered
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must.Succeed(t, <-done)
}

func TestBindingIsOfferedToTheOwnPodOnly(t *testing.T) {
	err := ServeBind(t.Context(), "0.0.0.0:0", http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "not a loopback address") {
		t.Error(err)
	}
}
