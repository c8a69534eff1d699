package driver_test

import (
	"context"
	"errors"
	"testing"

	"github.com/carve-csi/carve/pkg/driver"
	"github.com/carve-csi/carve/pkg/driver/drivertest"
	"github.com/carve-csi/carve/pkg/must"
)

func TestAnLVMDThatStartsIsAwaited(t *testing.T) {
	m := drivertest.NewFakeMachine(t)
	m.StopLVMD()
	conn := must.Get(driver.DialLVMD(m.LVMDSocket()))(t)
	defer conn.Close()
	if driver.LVMDAnswers(t.Context(), conn) == nil {
		t.Fatal("an lvmd that was stopped answers")
	}
	answers := make(chan error, 1)
	go func() { answers <- driver.AwaitLVMD(t.Context(), conn) }()
	m.StartLVMD()
	must.Succeed(t, <-answers)

	m.StopLVMD()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the plugin stops"))
	if driver.AwaitLVMD(ctx, conn) == nil {
		t.Error("an lvmd that was stopped answers")
	}
}
