package daemon

import (
	brokerv1 "enginebroker/proto/gen/broker/v1"
)

type boxServer struct {
	brokerv1.UnimplementedBoxServiceServer
	b     Broker
	quiet *quiet
}
