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

// csiVersions are the versions of CSI that the plugin speaks, as the kubelet
// wants them reported: it asks for 1.x.
var csiVersions = []string{"1.0.0"}

// Registration answers the kubelet's plugin watcher, which finds its socket in
// the registration directory, and remembers what became of it.
type Registration struct {
	registerapi.UnimplementedRegistrationServer

	endpoint string
	metrics  *Metrics
	log      *slog.Logger

	// again has the plugin registered once more.
	again chan struct{}

	mu    sync.Mutex
	state error
	// awaits says that a call of Again still asks known.
	awaits bool
	// pause is the time before the next call of Again asks.
	pause wait.Backoff
	// registers says that the kubelet registers the plugin at the moment, refreshes that it has asked
	// for the node's information since, without that.
	registers, refreshes bool
}

// errNotYet is the state before the kubelet's first notification.
var errNotYet = errors.New("the kubelet has not registered the plugin yet")

// NewRegistration makes the registration of the plugin whose CSI socket the
// kubelet sees at endpoint, a path on the host.
func NewRegistration(endpoint string, metrics *Metrics, log *slog.Logger) *Registration {
	return &Registration{endpoint: endpoint, metrics: metrics, log: log, again: make(chan struct{}, 1), state: errNotYet, pause: firstPause()}
}

// askPause is the time between calls of known in Again.
const askPause = time.Second

// maxAgainPause is about the longest time between registrations.
const maxAgainPause = 5 * time.Minute

// firstPause is the pause of the first call of Again, which grows with each further one.
func firstPause() wait.Backoff {
	return wait.Backoff{Duration: askPause, Factor: 2, Jitter: 0.1, Steps: math.MaxInt, Cap: maxAgainPause}
}

// Again has the kubelet register the plugin once more when known returns nil: what the kubelet
// was answered is in force until the next registration. Again returns at once; calls before known
// returned nil are one. It ends when ctx is done.
//
// A kubelet removes a plugin before it registers it once more, and mounts nothing meanwhile. An lvmd that
// answers here, but not when the kubelet asks, must not have the plugin removed again and again: each call
// waits for longer than the one before, until Complete. A kubelet that asks by itself need not register the
// plugin.
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

// Complete notes that the kubelet was answered all that it is to know: the next call of Again waits
// as the first one did.
func (r *Registration) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause = firstPause()
}

// Refreshes notes that the kubelet asks for the node's information, and reports whether it does so
// without registering the plugin. Such a kubelet asks again and again.
func (r *Registration) Refreshes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refreshes = r.state == nil && !r.registers
	return r.refreshes
}

// Registered returns nil when the kubelet has registered the plugin, else why it
// has not.
func (r *Registration) Registered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// GetInfo reports to the kubelet which plugin is there, with which a registration begins.
func (r *Registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registers, r.refreshes = true, false
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: names.Driver, Endpoint: r.endpoint, SupportedVersions: csiVersions,
	}, nil
}

// NotifyRegistrationStatus is how the kubelet reports the outcome. After a
// failure it tries again by itself.
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
