package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvmd"
)

// configInterval is how often the configuration file is looked at. A ConfigMap
// that is mounted changes by a link that is put in another's place, up to a
// minute after it was applied: nothing is gained by hurry.
const configInterval = 5 * time.Second

// errStartAgain ends everything that serves, for a service with the
// configuration that came.
var errStartAgain = errors.New("starting again with another configuration")

// configFile is the file and what was last seen in it.
type configFile struct {
	path string
	// hangup has the signals to look at the file at once.
	hangup <-chan os.Signal
	seen   []byte
	// next is the configuration to start again with, after errStartAgain.
	next *config.Config
}

func (f *configFile) load() (*config.Config, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, err
	}
	f.seen = data
	return config.Parse(f.path, data)
}

// watch has the service take over what comes to be in the file, until ctx is
// done or the service must be started again. It looks at intervals, and at once
// at SIGHUP.
func (f *configFile) watch(ctx context.Context, service *lvmd.Service, log *slog.Logger) error {
	tick := time.NewTicker(configInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.hangup:
		case <-ctx.Done():
			return nil
		}
		if err := f.look(service, log); err != nil {
			return err
		}
	}
}

// look takes over a changed file. The only error is errStartAgain.
func (f *configFile) look(service *lvmd.Service, log *slog.Logger) error {
	data, err := os.ReadFile(f.path)
	if err != nil {
		// It is missing for a moment when it is replaced; what is in force stays.
		log.Warn("the configuration file cannot be read", "error", err)
		return nil
	}
	if bytes.Equal(data, f.seen) {
		return nil
	}
	f.seen = data
	c, err := config.Parse(f.path, data)
	if err != nil {
		refuse(service, log, err)
		return nil
	}
	switch err := service.Reload(c); {
	case err == nil:
		log.Info("the changed configuration is in force", "classes", len(c.Classes))
	case errors.Is(err, lvmd.ErrNeedsStart):
		f.next = c
		return errStartAgain
	default:
		refuse(service, log, err)
	}
	return nil
}

// refuse says that a configuration is not taken over, in every way there is.
func refuse(service *lvmd.Service, log *slog.Logger, err error) {
	log.Error("the changed configuration is not taken over; the one before stays in force", "error", err)
	service.Refuse(err.Error())
}
