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

// configInterval need not be short: a mounted ConfigMap changes, by a replaced link, up to a
// minute after it was applied.
const configInterval = 5 * time.Second

// errStartAgain ends everything that serves, so that a new service starts with configFile.next.
var errStartAgain = errors.New("starting again with another configuration")

type configFile struct {
	path string
	// hangup receives SIGHUP, which reads the file at once.
	hangup <-chan os.Signal
	seen   []byte
	// next is the configuration for the start after errStartAgain.
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

// watch applies changes of the file until ctx is done or the service must start again.
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

// look fails only with errStartAgain.
func (f *configFile) look(service *lvmd.Service, log *slog.Logger) error {
	data, err := os.ReadFile(f.path)
	if err != nil {
		// The file is missing for a moment when it is replaced.
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

func refuse(service *lvmd.Service, log *slog.Logger, err error) {
	log.Error("the changed configuration is not taken over; the one before stays in force", "error", err)
	service.Refuse(err.Error())
}
