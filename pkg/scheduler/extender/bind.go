package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

const (
	// BindTimeout bounds the binding of one Pod. It is what kube-scheduler itself gives the
	// volumes of a Pod by default.
	BindTimeout = 10 * time.Minute
	// maximumBindRequest bounds the body of a request to bind, in bytes: four names.
	maximumBindRequest = 64 << 10
	// bindShutdown bounds how long ServeBind waits for answers when it ends. Bindings under
	// way are cancelled then: the scheduler asks for them again.
	bindShutdown = 2 * time.Second
)

// Binder binds Pods to nodes for the scheduler.
type Binder interface {
	// Bind binds a Pod to a node, once its volumes are there. It must be idempotent: the
	// scheduler asks again where an answer was lost. After an error, it schedules the
	// Pod again. Bind is called concurrently.
	Bind(ctx context.Context, args extenderv1.ExtenderBindingArgs) error
}

// NewBind makes the handler for the verb "bind".
func NewBind(binder Binder, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /bind", func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderBindingArgs
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maximumBindRequest)).Decode(&args); err != nil {
			http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
			return
		}
		if args.PodName == "" || args.PodNamespace == "" || args.PodUID == "" || args.Node == "" {
			http.Error(w, "body: PodName, PodNamespace, PodUID and Node are required", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), BindTimeout)
		defer cancel()
		var result extenderv1.ExtenderBindingResult
		if err := binder.Bind(ctx, args); err != nil {
			log.Info("Pod is not bound", "pod", args.PodNamespace+"/"+args.PodName, "node", args.Node, "error", err)
			result.Error = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(result) // a scheduler that is gone needs no answer
	})
	return mux
}

// ServeBind answers the scheduler that runs beside this process, in the same Pod, until ctx is
// done. It serves HTTP, and loopback addresses only: every client may bind any Pod that
// this process' rights allow.
func ServeBind(ctx context.Context, address string, handler http.Handler, log *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the scheduler: %w", err)
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("listen for the scheduler: %s is not a loopback address", address), listener.Close())
	}
	server := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      BindTimeout + 10*time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the scheduler: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), bindShutdown)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the scheduler: %w", err)
	}
	return nil
}
