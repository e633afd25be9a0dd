//! What can go wrong in Postgres, and what it means to a caller of the port.

use std::sync::Arc;
use std::time::Duration;

use contract::StoreError;

/// Why a statement, or the transaction around it, did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    /// The driver's or the server's own error.
    #[error("{0}")]
    Database(#[source] Arc<sqlx::Error>),
    /// No answer came.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// A row does not hold what this build writes.
    #[error("{0}")]
    Corrupt(String),
    /// Another transaction wrote first what this one had seen to be free.
    #[error("another transaction came first")]
    Overtaken,
}

/// SQLSTATE codes of transactions that were rolled back because of another one: trying again may work.
const SERIALIZATION: &str = "40001";
const DEADLOCK: &str = "40P01";
const UNIQUE: &str = "23505";

impl From<sqlx::Error> for Fault {
    fn from(err: sqlx::Error) -> Self {
        Fault::Database(Arc::new(err))
    }
}

impl Fault {
    /// SQLSTATE, if the server itself refused.
    fn code(&self) -> Option<String> {
        let Fault::Database(err) = self else { return None };
        Some(err.as_database_error()?.code()?.into_owned())
    }

    /// Whether another transaction was in the way.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Fault::Overtaken) || self.code().is_some_and(|code| code == SERIALIZATION || code == DEADLOCK)
    }

    /// Whether a row with this key came first.
    pub(super) fn is_duplicate(&self) -> bool {
        self.code().is_some_and(|code| code == UNIQUE)
    }

    /// Whether the connection is of no use any more: it was cut, or the server ends it (class 57P), or nobody answers.
    pub(super) fn is_of_connection(&self) -> bool {
        match self {
            Fault::Corrupt(_) | Fault::Overtaken => false,
            Fault::Silent(_) => true,
            Fault::Database(err) => match self.code() {
                Some(code) => code.starts_with("57P") || code.starts_with("08"),
                None => !is_about_data(err),
            },
        }
    }

    /// True when one operation is at fault, so that others can go on without it; false when the server or the
    /// connection is.
    pub(super) fn is_about_one_operation(&self) -> bool {
        match (self, self.code()) {
            (Fault::Corrupt(_), _) => true,
            (Fault::Silent(_) | Fault::Overtaken, _) => false,
            // Bad data, a broken constraint, what the statement says, and what a trigger raises.
            (_, Some(code)) => ["22", "23", "42", "P0", "54"].iter().any(|class| code.starts_with(class)),
            (Fault::Database(err), None) => is_about_data(err),
        }
    }

    /// For a transaction that was rolled back, or never begun, and for reading.
    pub(super) fn nothing_written(self) -> StoreError {
        if let Fault::Corrupt(what) = self {
            return StoreError::Corrupt(what);
        }
        if self.is_about_one_operation() {
            return StoreError::Corrupt(self.to_string());
        }
        StoreError::Unreachable(Box::new(self))
    }

    /// For a commit, or a statement that commits by itself: only an error after which the session goes on says that
    /// nothing was kept.
    pub(super) fn of_commit(self) -> StoreError {
        if self.is_of_connection() {
            return StoreError::Unanswered(Box::new(self));
        }
        self.nothing_written()
    }
}

fn is_about_data(err: &sqlx::Error) -> bool {
    matches!(
        err,
        sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_)
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::RowNotFound
    )
}
