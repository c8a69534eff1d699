// Package extender speaks the kube-scheduler's extender protocol over HTTPS:
// it filters nodes by whether they can take all of a Pod's volumes together,
// and prioritises them by the volumes' placement policies.
//
// It owns the protocol and its limits, never the judgement: that is the
// ledger's (pkg/scheduler), and the caller says what a Pod demands. It is
// optional; without it the scheduler judges claims one by one.
//
// Invariants: a request is bounded in size, in time and in number; a node that
// was not asked about is never answered; whatever cannot be judged is an error
// in the answer, which the scheduler ignores when it is configured with
// "ignorable: true".
//
// Callers: pkg/controller, and cmd/controller for the verb bind.
package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/carve-csi/carve/pkg/scheduler"
)

const (
	// maximumRequest bounds a request's body, in bytes: a Pod is at most 1.5 MiB,
	// and 10,000 node names of full length take 2.5 MiB.
	maximumRequest = 5 << 20
	// maximumWaiting is how many requests are worked on at once. A scheduler
	// sends one at a time.
	maximumWaiting = 16
	// requestTimeout bounds the work on one request. The scheduler's own limit
	// is 5 s unless its configuration says otherwise.
	requestTimeout = 2 * time.Second
	// maximumReasons is of how many refused nodes the answer says what is missing there. The scheduler writes all
	// reasons that differ into the Pod's status.
	maximumReasons = 10
)

// Judge is what the extender asks; *scheduler.Ledger is one.
type Judge interface {
	// Fit returns nil when a node can take all demands together, or why not: a
	// *scheduler.UnreportedError when it knows nothing of the node.
	Fit(node string, demands []scheduler.Demand) error
	// Score rates nodes from 0 to most.
	Score(nodes []string, demands []scheduler.Demand, most int64) map[string]int64
}

// Options configure New. All are required.
type Options struct {
	Judge Judge
	// Demands says which volumes a Pod still needs from us; none for a Pod that
	// is not our business. It is called concurrently.
	Demands func(context.Context, *v1.Pod) ([]scheduler.Demand, error)
	// Published returns nil when the capacity that is published for a node is enough for one of the demands. It is
	// nil where the scheduler compares that itself.
	Published func(node string, demand scheduler.Demand) error
	// Seconds, by verb and HTTP code, takes how long requests took.
	Seconds *prometheus.HistogramVec
	Log     *slog.Logger
}

// New makes the handler for the verbs "filter" and "prioritize".
func New(o Options) http.Handler {
	h := &handler{Options: o, slots: make(chan struct{}, maximumWaiting)}
	mux := http.NewServeMux()
	mux.Handle("POST /filter", h.serve("filter", h.filter))
	mux.Handle("POST /prioritize", h.serve("prioritize", h.prioritize))
	return mux
}

type handler struct {
	Options
	slots chan struct{}
}

// verb answers one request. An error is the requester's mistake.
type verb func(context.Context, *extenderv1.ExtenderArgs) (any, error)

func (h *handler) serve(name string, answer verb) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		code, body, message := h.handle(w, r, answer)
		if message != "" {
			h.Log.Warn("scheduler's request refused", "verb", name, "code", code, "error", message)
			http.Error(w, message, code)
		} else {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body) // a requester that is gone needs no answer
		}
		h.Seconds.WithLabelValues(name, strconv.Itoa(code)).Observe(time.Since(began).Seconds())
	})
}

// handle returns the answer's body, or a message for a code that is not 200.
func (h *handler) handle(w http.ResponseWriter, r *http.Request, answer verb) (code int, body []byte, message string) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return http.StatusServiceUnavailable, nil, "too many requests at once"
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	var args extenderv1.ExtenderArgs
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maximumRequest)).Decode(&args); err != nil {
		return http.StatusBadRequest, nil, "body: " + err.Error()
	}
	switch {
	case args.Pod == nil:
		return http.StatusBadRequest, nil, "body: no Pod"
	case args.NodeNames == nil:
		return http.StatusBadRequest, nil, "body: no NodeNames; the extender's configuration needs nodeCacheCapable: true"
	}
	result, err := answer(ctx, &args)
	if err != nil {
		return http.StatusServiceUnavailable, nil, err.Error()
	}
	body, err = json.Marshal(result)
	if err != nil {
		return http.StatusInternalServerError, nil, err.Error()
	}
	return http.StatusOK, body, ""
}

// filter keeps the nodes that can take all of the Pod's volumes together.
// Refusals are unresolvable: evicting other Pods does not free space at once,
// for their volumes outlive them or have to be wiped first.
//
// A node that has not reported is kept. A replica knows no node in its first seconds, and the
// scheduler asks again about a refused Pod only when something changes in the cluster. The node
// is judged by the capacity that is published for it then, which the scheduler, or Published, has
// compared already.
func (h *handler) filter(ctx context.Context, args *extenderv1.ExtenderArgs) (any, error) {
	demands, err := h.demands(ctx, args.Pod)
	if err != nil {
		return nil, err
	}
	if len(demands) == 0 {
		return &extenderv1.ExtenderFilterResult{NodeNames: args.NodeNames}, nil
	}
	fit, refused := []string{}, extenderv1.FailedNodesMap{}
	for _, node := range *args.NodeNames {
		switch err := h.judge(node, demands); {
		case err == nil:
			fit = append(fit, node)
		case len(refused) < maximumReasons:
			refused[node] = err.Error()
		default:
			refused[node] = "node(s) cannot take all of the Pod's volumes"
		}
	}
	return &extenderv1.ExtenderFilterResult{NodeNames: &fit, FailedAndUnresolvableNodes: refused}, nil
}

// judge returns nil when a node can take all demands together.
func (h *handler) judge(node string, demands []scheduler.Demand) error {
	if h.Published != nil {
		for _, d := range demands {
			if d.Node != "" {
				continue // it exists
			}
			if err := h.Published(node, d); err != nil {
				return err
			}
		}
	}
	var unreported *scheduler.UnreportedError
	if err := h.Judge.Fit(node, demands); !errors.As(err, &unreported) {
		return err
	}
	return nil
}

func (h *handler) prioritize(ctx context.Context, args *extenderv1.ExtenderArgs) (any, error) {
	demands, err := h.demands(ctx, args.Pod)
	if err != nil {
		return nil, err
	}
	scores := h.Judge.Score(*args.NodeNames, demands, extenderv1.MaxExtenderPriority)
	out := make(extenderv1.HostPriorityList, 0, len(*args.NodeNames))
	for _, node := range *args.NodeNames {
		out = append(out, extenderv1.HostPriority{Host: node, Score: scores[node]})
	}
	return &out, nil
}

func (h *handler) demands(ctx context.Context, pod *v1.Pod) ([]scheduler.Demand, error) {
	demands, err := h.Demands(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("volumes of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return demands, nil
}
