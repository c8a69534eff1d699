package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/carve-csi/carve/api/names"
)

// csiVersions are the CSI versions that the plugin supports. The kubelet wants
// 1.x.
var csiVersions = []string{"1.0.0"}

// Registration answers the kubelet's plugin watcher, which finds its socket in
// the registration directory, and records the outcome.
type Registration struct {
	registerapi.UnimplementedRegistrationServer

	endpoint string
	metrics  *Metrics
	log      *slog.Logger

	again chan struct{}

	mu    sync.Mutex
	state error
	// awaits means that a call of Again still polls known.
	awaits bool
	// pause precedes the first poll of the next call of Again.
	pause wait.Backoff
	// registers is set while the kubelet registers the plugin. refreshes means
	// that the kubelet has since asked for the node's information outside a
	// registration.
	registers, refreshes bool
}

var errNotYet = errors.New("the kubelet has not registered the plugin yet")

// NewRegistration returns the registration of a plugin. endpoint is its CSI
// socket as the kubelet sees it, a path on the host.
func NewRegistration(endpoint string, metrics *Metrics, log *slog.Logger) *Registration {
	return &Registration{endpoint: endpoint, metrics: metrics, log: log, again: make(chan struct{}, 1), state: errNotYet, pause: firstPause()}
}

const askPause = time.Second

// maxAgainPause is the longest time between registrations, roughly.
const maxAgainPause = 5 * time.Minute

func firstPause() wait.Backoff {
	return wait.Backoff{Duration: askPause, Factor: 2, Jitter: 0.1, Steps: math.MaxInt, Cap: maxAgainPause}
}

// Again makes the kubelet register the plugin once more when known returns nil.
// Until then the kubelet's previous answer stays in force. Again returns at
// once and polls until ctx is done; calls while it polls have no effect.
//
// The kubelet first removes a plugin that it registers once more, and mounts
// nothing in between. An lvmd that answers here but not to the kubelet must not
// cause that continually, so the pause grows with each call until Complete. A
// kubelet that asks by itself need not register again.
func (r *Registration) Again(ctx context.Context, known func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaits {
		return
	}
	r.awaits = true
	pause := r.pause.Step()
	go func() {
		for asked := false; !asked || known(ctx) != nil; asked, pause = true, askPause {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.awaits = false
		if r.refreshes {
			return
		}
		r.log.Info("lvmd answers: the kubelet is to register the plugin again, with the number of volumes")
		select {
		case r.again <- struct{}{}:
		default:
		}
	}()
}

// Complete means that the kubelet has a complete answer. It resets the pause of
// Again.
func (r *Registration) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause = firstPause()
}

// Refreshes records that the kubelet asks for the node's information, and
// reports whether it asks outside a registration. Such a kubelet asks
// repeatedly.
func (r *Registration) Refreshes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshes = r.state == nil && !r.registers
	return r.refreshes
}

// Registered returns nil if the kubelet has registered the plugin, or the
// reason why not.
func (r *Registration) Registered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// GetInfo describes the plugin. A registration begins with it.
func (r *Registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registers, r.refreshes = true, false
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: names.Driver, Endpoint: r.endpoint, SupportedVersions: csiVersions,
	}, nil
}

// NotifyRegistrationStatus receives the outcome. The kubelet retries after a
// failure.
func (r *Registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registers = false
	if s.GetPluginRegistered() {
		r.state = nil
		r.metrics.registered.Set(1)
		r.log.Info("the kubelet registered the plugin")
	} else {
		r.state = fmt.Errorf("the kubelet refused the plugin: %s", s.GetError())
		r.metrics.registered.Set(0)
		r.log.Error("the kubelet refused the plugin", "error", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
